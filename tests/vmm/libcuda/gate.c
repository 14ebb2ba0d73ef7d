/* The gate that every call passes, and the controls of the tests. */
#include "standin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 128, MAX_FAILURES = 32 };

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local const char *call = "a stream";
static char words[512];
static struct count {
    const char *name;
    long long calls;
} counts[MAX_NAMES];
static struct failure {
    char name[64]; /* "": any call */
    int after, error;
} failures[MAX_FAILURES];

int refuse(int error, const char *format, ...) {
    int used = snprintf(words, sizeof words, "%s: ", call);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words + used, sizeof words - (size_t)used, format, arguments);
    va_end(arguments);
    return error;
}

uintptr_t new_id(void) {
    /* Ids are never used twice, and none is a pointer: a stale one is always found out. */
    return driver.ids += 16;
}

static void count_call(const char *name) {
    for (struct count *count = counts; count < counts + MAX_NAMES; count++) {
        if (!count->name) {
            count->name = name;
        }
        if (!strcmp(count->name, name)) {
            count->calls++;
            return;
        }
    }
}

/* The error that a test ordered for this call. */
static int ordered_failure(const char *name) {
    int error = SUCCESS;
    for (struct failure *failure = failures; failure < failures + MAX_FAILURES; failure++) {
        bool meant = failure->after && (!*failure->name || !strcmp(failure->name, name));
        if (meant && --failure->after == 0 && !error) {
            error = refuse(failure->error, "failed with %d, as ordered", failure->error);
        }
    }
    return error;
}

static int gate(const char *name, enum need need) {
    if (driver.resetting) {
        return refuse(DEINITIALIZED, "everything is being reset");
    }
    count_call(name);
    int error = ordered_failure(name);
    if (error) {
        return error;
    }
    if (need >= INIT && !driver.started) {
        return refuse(NOT_INITIALIZED, "cuInit was not called");
    }
    if (need >= INIT && driver.sticky) {
        return driver.sticky;
    }
    if (need >= CONTEXT && !current_context()) {
        return refuse(INVALID_CONTEXT, "this thread has no current context");
    }
    if (need >= CONTEXT && current_device() < 0) {
        return refuse(INVALID_CONTEXT, "the current context was released");
    }
    if (need == VMM && !driver.vmm_supported) {
        return refuse(NOT_SUPPORTED, "the device has no virtual memory management");
    }
    return SUCCESS;
}

int enter(const char *name, enum need need) {
    if (driver.forked) {
        return NOT_INITIALIZED; /* and touch no lock: its owner may not exist in this process */
    }
    pthread_mutex_lock(&driver.lock);
    call = name;
    int error = gate(name, need);
    if (error) {
        pthread_mutex_unlock(&driver.lock);
    }
    return error;
}

int leave(int result) {
    shared_end();
    pthread_mutex_unlock(&driver.lock);
    return result;
}

static void note_fork(void) {
    driver.forked = true;
}

static void set_defaults(size_t memory_bytes, size_t granularity) {
    driver.total = memory_bytes;
    driver.granularity = granularity;
    driver.devices = 1;
    driver.vmm_supported = driver.strict_host = driver.shareable = driver.peers = true;
    driver.version = 13000;
    driver.delay_s = driver.pace_bytes_per_s = 0;
}

/* Usable at once: a program that merely finds the library has no controls. */
__attribute__((constructor)) static void loaded(void) {
    set_defaults((size_t)1 << 30, (size_t)2 << 20);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&driver.changed, &clock);
    pthread_atfork(NULL, NULL, note_fork);
}

void gate_clear(void) {
    memset(counts, 0, sizeof counts);
    memset(failures, 0, sizeof failures);
    words[0] = 0;
}

/* The controls. They answer -1 in a forked child and to what makes no sense. */

static bool control(void) {
    if (driver.forked) {
        return false;
    }
    pthread_mutex_lock(&driver.lock);
    return true;
}

static int controlled(int result) {
    pthread_cond_broadcast(&driver.changed);
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API int standin_reset(size_t memory_bytes, size_t granularity) {
    bool power_of_two = granularity && !(granularity & (granularity - 1));
    if (!power_of_two || granularity < 65536 || !control()) {
        return -1;
    }
    driver.resetting = true; /* turns away calls of other threads while this one waits */
    driver.epoch++;
    pthread_cond_broadcast(&driver.changed);
    while (driver.threads) {
        pthread_cond_wait(&driver.changed, &driver.lock);
    }
    memory_clear();
    shared_detach();
    book_clear(&driver.registrations, true);
    book_clear(&driver.streams, false);
    for (size_t i = 0; i < driver.events.count; i++) {
        struct event *event = driver.events.spans[i].what;
        recording_drop(event->latest);
    }
    book_clear(&driver.events, true);
    memset(driver.device, 0, sizeof driver.device);
    driver.started = driver.resetting = false;
    driver.sticky = SUCCESS;
    set_defaults(memory_bytes, granularity);
    gate_clear();
    return controlled(0);
}

API int standin_fail(int nth, const char *name, int error) {
    if (nth < 1 || error <= 0 || strlen(name) >= sizeof failures[0].name) {
        return -1;
    }
    if ((*name && !known_name(name)) || !control()) {
        return -1;
    }
    for (struct failure *failure = failures; failure < failures + MAX_FAILURES; failure++) {
        if (!failure->after) {
            strcpy(failure->name, name);
            failure->after = nth;
            failure->error = error;
            return controlled(0);
        }
    }
    return controlled(-1);
}

API int standin_fault(int error) {
    if (error < 0 || !control()) {
        return -1;
    }
    driver.sticky = error;
    return controlled(0);
}

API int standin_calls(char *text, size_t room) {
    if (!control()) {
        return -1;
    }
    size_t used = 0;
    text[0] = 0;
    for (struct count *count = counts; count < counts + MAX_NAMES && count->name; count++) {
        used += (size_t)snprintf(text + used, room - used, "%s %lld\n", count->name, count->calls);
        if (used >= room) {
            return controlled(-1);
        }
    }
    return controlled(0);
}

API int standin_last_words(char *text, size_t room) {
    if (!control()) {
        return -1;
    }
    snprintf(text, room, "%s", words);
    return controlled(0);
}

API int standin_leaks(char *text, size_t room) {
    if (!control()) {
        return -1;
    }
    size_t mapped = driver.mappings.count - driver.allocations.count;
    int retains = 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        retains += driver.device[i].retains;
    }
    snprintf(text, room,
             "handles %zu\nmappings %zu\nreservations %zu\nallocations %zu\nstreams %zu\n"
             "events %zu\nregistrations %zu\ncontexts %d\n",
             driver.handles.count, mapped, driver.reservations.count, driver.allocations.count,
             driver.streams.count, driver.events.count, driver.registrations.count, retains);
    return controlled(0);
}

API long long standin_used_bytes(void) {
    if (!control()) {
        return -1;
    }
    long long used = 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        used += (long long)driver.device[i].used;
    }
    return controlled(0) ? -1 : used;
}

API int standin_pace(double bytes_per_s) {
    if (bytes_per_s < 0 || !control()) {
        return -1;
    }
    driver.pace_bytes_per_s = bytes_per_s;
    return controlled(0);
}

API int standin_delay(double seconds) {
    if (seconds < 0 || !control()) {
        return -1;
    }
    driver.delay_s = seconds;
    return controlled(0);
}

API int standin_share(const char *path) {
    if (!control()) {
        return -1;
    }
    bool fresh = !driver.handles.count && !driver.allocations.count;
    shared_detach();
    return controlled(fresh && shared_attach(path) ? 0 : -1);
}

API int standin_peers(int peers) {
    if (!control()) {
        return -1;
    }
    driver.peers = peers;
    return controlled(0);
}

API int standin_version(int version) {
    if (version < 1 || !control()) {
        return -1;
    }
    driver.version = version;
    return controlled(0);
}

API int standin_flags(int vmm_supported, int devices, int strict_host, int shareable) {
    if (devices < 0 || devices > MAX_DEVICES || !control()) {
        return -1;
    }
    driver.vmm_supported = vmm_supported;
    driver.devices = devices;
    driver.strict_host = strict_host;
    driver.shareable = shareable;
    return controlled(0);
}

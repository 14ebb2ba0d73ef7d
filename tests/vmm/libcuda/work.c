/* Streams at work: one thread and one queue each, and the recordings they pass. */
#include "standin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLICE_BYTES = 4 << 20 };

struct timespec now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time;
}

double seconds_between(struct timespec from, struct timespec to) {
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
}

static void sleep_at_most(double seconds) {
    struct timespec until = now();
    long long nanoseconds = until.tv_nsec + (long long)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_cond_timedwait(&driver.changed, &driver.lock, &until);
}

void recording_drop(struct recording *recording) {
    if (recording && !--recording->references) {
        free(recording);
    }
}

struct work *work_new(enum kind kind, size_t count) {
    struct work *work = calloc(1, sizeof *work + count * sizeof(struct piece));
    work->kind = kind;
    work->count = count;
    return work;
}

void work_free(struct work *work) {
    for (size_t i = 0; i < work->count; i++) {
        if (work->pieces[i].staged) {
            free((void *)work->pieces[i].src);
        }
    }
    recording_drop(work->recording);
    free(work);
}

/* Copies by the kernel, which answers with an error where a memcpy would kill the process. */
int move_bytes(uintptr_t dst, uintptr_t src, size_t bytes) {
    while (bytes) {
        struct iovec to = {(void *)dst, bytes}, from = {(void *)src, bytes};
        ssize_t moved = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (moved < 0 && (errno == EPERM || errno == ENOSYS)) {
            memcpy((void *)dst, (void *)src, bytes); /* a sandbox that forbids the call */
            return SUCCESS;
        }
        if (moved <= 0) {
            return ILLEGAL_ADDRESS;
        }
        dst += (size_t)moved, src += (size_t)moved, bytes -= (size_t)moved;
    }
    return SUCCESS;
}

static bool overlap(uintptr_t start, size_t bytes, uintptr_t other, size_t other_bytes) {
    return start < other + other_bytes && other < start + bytes;
}

/* The stream whose queued or running work touches these addresses, 0 if none. */
uintptr_t busy(uintptr_t start, size_t bytes, bool writes_only) {
    for (struct stream *stream = driver.running; stream; stream = stream->next) {
        for (struct work *work = stream->head; work; work = work->next) {
            for (size_t i = 0; i < work->count; i++) {
                struct piece *piece = &work->pieces[i];
                bool reads = work->kind == COPY && !piece->staged && !writes_only;
                if (overlap(start, bytes, piece->dst, piece->bytes) ||
                    (reads && overlap(start, bytes, piece->src, piece->bytes))) {
                    return stream->id;
                }
            }
        }
    }
    return 0;
}

/* The legacy stream starts work when blocking streams finished what was enqueued before it,
 * and holds up what they are given after it. */
static bool held_by_legacy(const struct stream *stream) {
    if (!stream->blocking && !stream->legacy) {
        return false;
    }
    for (struct stream *other = driver.running; other; other = other->next) {
        bool between = stream->legacy ? other->blocking : other->legacy;
        if (between && other != stream && other->context == stream->context && other->head &&
            other->head->ticket < stream->head->ticket) {
            return true;
        }
    }
    return false;
}

static bool may_go_on(const struct stream *stream) {
    if (!stream->head) {
        return stream->destroyed;
    }
    if (driver.sticky) {
        return true; /* what is queued is dropped */
    }
    bool awaits = stream->head->kind == AWAIT && !stream->head->recording->done;
    return !awaits && !held_by_legacy(stream);
}

static bool still(const struct stream *stream) {
    return driver.epoch == stream->epoch && !driver.sticky;
}

/* Small steps at a low pace, so that a paced copy is seen to arrive bit by bit. */
static size_t slice_of(size_t bytes) {
    double paced = driver.pace_bytes_per_s / 500 + 1;
    size_t slice = driver.pace_bytes_per_s > 0 && paced < SLICE_BYTES ? (size_t)paced : SLICE_BYTES;
    return slice < bytes ? slice : bytes;
}

static void keep_pace(const struct stream *stream, struct timespec started, double moved) {
    while (still(stream) && driver.pace_bytes_per_s > 0) {
        double due = moved / driver.pace_bytes_per_s - seconds_between(started, now());
        if (due <= 0) {
            return;
        }
        sleep_at_most(due);
    }
}

static void copy_slice(const struct stream *stream, uintptr_t dst, uintptr_t src, size_t bytes) {
    pthread_mutex_unlock(&driver.lock);
    int error = move_bytes(dst, src, bytes);
    pthread_mutex_lock(&driver.lock);
    if (error && still(stream)) {
        driver.sticky = refuse(error, "copy of %zu bytes from %#zx to %#zx met memory that is gone",
                               bytes, src, dst);
    }
}

static void copy(const struct stream *stream, const struct work *work) {
    struct timespec started = now();
    double moved = 0;
    /* Last piece first: the order within a batch is undefined, so nothing may rest on it. */
    for (size_t i = work->count; i-- > 0;) {
        struct piece piece = work->pieces[i];
        size_t slice;
        for (size_t at = 0; at < piece.bytes && still(stream); at += slice) {
            slice = slice_of(piece.bytes - at);
            copy_slice(stream, piece.dst + at, piece.src + at, slice);
            moved += (double)slice;
            keep_pace(stream, started, moved);
        }
    }
}

static void fill(const struct work *work) {
    struct piece piece = work->pieces[0];
    pthread_mutex_unlock(&driver.lock);
    memset((void *)piece.dst, work->byte, piece.bytes);
    pthread_mutex_lock(&driver.lock);
}

static void keep_delay(const struct stream *stream) {
    struct timespec started = now();
    while (still(stream)) {
        double due = driver.delay_s - seconds_between(started, now());
        if (due <= 0) {
            return;
        }
        sleep_at_most(due);
    }
}

static void perform(const struct stream *stream, const struct work *work) {
    if (work->kind == COPY || work->kind == FILL || work->kind == RECORD) {
        keep_delay(stream);
    }
    if (work->kind == COPY) {
        copy(stream, work);
    }
    if (work->kind == FILL && still(stream)) {
        fill(work);
    }
}

static void pop(struct stream *stream) {
    struct work *work = stream->head;
    if (work->kind == RECORD) {
        work->recording->done = true;
        work->recording->at = now();
    }
    stream->head = work->next;
    if (!stream->head) {
        stream->tail = &stream->head;
    }
    work_free(work);
    pthread_cond_broadcast(&driver.changed);
}

static void end(struct stream *stream) {
    struct stream **link = &driver.running;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    while (stream->head) {
        pop(stream);
    }
    free(stream);
    driver.threads--;
    pthread_cond_broadcast(&driver.changed);
}

static void *serve(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&driver.lock);
    while (driver.epoch == stream->epoch && (!stream->destroyed || stream->head)) {
        if (!may_go_on(stream)) {
            pthread_cond_wait(&driver.changed, &driver.lock);
            continue;
        }
        if (!driver.sticky) {
            perform(stream, stream->head);
        }
        if (driver.epoch == stream->epoch) {
            pop(stream);
        }
    }
    while (driver.epoch == stream->epoch && stream->waiters) {
        pthread_cond_wait(&driver.changed, &driver.lock);
    }
    end(stream);
    pthread_mutex_unlock(&driver.lock);
    return NULL;
}

/* NULL if the system has no thread for it. */
struct stream *stream_start(bool legacy, bool blocking) {
    struct stream *stream = calloc(1, sizeof *stream);
    stream->id = new_id();
    stream->context = current_context();
    stream->epoch = driver.epoch;
    stream->legacy = legacy;
    stream->blocking = blocking;
    stream->tail = &stream->head;
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, stream)) {
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    driver.threads++;
    stream->next = driver.running;
    driver.running = stream;
    return stream;
}

void stream_enqueue(struct stream *stream, struct work *work) {
    work->ticket = ++driver.tickets;
    *stream->tail = work;
    stream->tail = &work->next;
    pthread_cond_broadcast(&driver.changed);
}

/* Wait for the work of a stream up to a ticket. */
int stream_await(struct stream *stream, uint64_t ticket) {
    uint64_t epoch = driver.epoch;
    stream->waiters++;
    while (driver.epoch == epoch && stream->head && stream->head->ticket <= ticket) {
        pthread_cond_wait(&driver.changed, &driver.lock);
    }
    if (driver.epoch != epoch) {
        return refuse(DEINITIALIZED, "everything was reset while waiting");
    }
    stream->waiters--;
    pthread_cond_broadcast(&driver.changed);
    return driver.sticky;
}

int stream_drain(struct stream *stream) {
    if (stream->legacy) {
        /* It also waits for the blocking streams: a mark behind them finds their end. */
        stream_enqueue(stream, work_new(MARK, 0));
    }
    return stream_await(stream, driver.tickets);
}

int recording_await(struct recording *recording) {
    uint64_t epoch = driver.epoch;
    recording->references++;
    while (driver.epoch == epoch && !recording->done) {
        pthread_cond_wait(&driver.changed, &driver.lock);
    }
    recording_drop(recording);
    if (driver.epoch != epoch) {
        return refuse(DEINITIALIZED, "everything was reset while waiting");
    }
    return driver.sticky;
}

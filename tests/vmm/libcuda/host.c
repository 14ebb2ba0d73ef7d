/* Registered host memory. */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>

enum { READ_ONLY = 8, KNOWN_FLAGS = 1 | 2 | READ_ONLY };

/* Whether this process has memory at all of these addresses, writable if need be. */
static bool exists(uintptr_t start, uintptr_t end, bool writable) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[8];
    uintptr_t first, last, at = start;
    while (maps && at < end && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &first, &last, rights) == 3 && first <= at && at < last) {
            bool good = rights[0] == 'r' && (rights[1] == 'w' || !writable);
            at = good ? last : at;
        }
    }
    if (maps) {
        fclose(maps);
    }
    return at >= end;
}

static int host_register(uintptr_t start, size_t bytes, unsigned flags) {
    uintptr_t end = start + bytes;
    if (!start || end <= start || flags & ~KNOWN_FLAGS) {
        return refuse(INVALID_VALUE, "no memory at %#zx + %zu, or unknown flags %u", start, bytes,
                      flags);
    }
    if (book_overlap(&driver.registrations, start, end)) {
        return refuse(ALREADY_REGISTERED, "%#zx + %zu is registered in part", start, bytes);
    }
    if (book_overlap(&driver.reservations, start, end) ||
        book_overlap(&driver.mappings, start, end)) {
        return refuse(INVALID_VALUE, "%#zx + %zu are addresses of the device", start, bytes);
    }
    if (!exists(start, end, !(flags & READ_ONLY))) {
        return refuse(INVALID_VALUE, "%#zx + %zu is not memory, or read-only", start, bytes);
    }
    void *read_only = flags & READ_ONLY ? malloc(1) : NULL;
    book_add(&driver.registrations, start, end, read_only);
    return SUCCESS;
}

API int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    int error = enter("cuMemHostRegister", CONTEXT);
    return error ? error : leave(host_register((uintptr_t)start, bytes, flags));
}

static int host_unregister(uintptr_t start) {
    struct span *span = book_at(&driver.registrations, start);
    if (!span || span->start != start) {
        return refuse(NOT_REGISTERED, "%#zx is not the start of registered memory", start);
    }
    uintptr_t stream = busy(start, span->end - start, false);
    if (stream) {
        return refuse(INVALID_VALUE, "work of stream %#zx still uses %#zx", stream, start);
    }
    free(span->what);
    book_remove(&driver.registrations, start);
    return SUCCESS;
}

API int cuMemHostUnregister(void *start) {
    int error = enter("cuMemHostUnregister", CONTEXT);
    return error ? error : leave(host_unregister((uintptr_t)start));
}

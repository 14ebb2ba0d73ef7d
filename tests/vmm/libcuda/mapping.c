/* Reserved addresses, what is mapped into them, and who may reach it. */
#include "standin.h"

#include <stdlib.h>
#include <sys/mman.h>

static bool aligned(uintptr_t value) {
    return value % driver.granularity == 0;
}

int check_range(uintptr_t start, size_t bytes) {
    if (!bytes || !aligned(bytes) || !aligned(start)) {
        return refuse(INVALID_VALUE, "address %#zx and size %zu must be multiples of %zu", start,
                      bytes, driver.granularity);
    }
    if (start + bytes < start) {
        return refuse(INVALID_VALUE, "%#zx + %zu ends beyond all addresses", start, bytes);
    }
    return SUCCESS;
}

/* Addresses with nothing behind them. A forked child has no part in device memory, and must
 * not see what the parent writes: its copy of the range is left out. */
static bool back_by_nothing(uintptr_t start, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *made = mmap((void *)start, bytes, PROT_NONE, flags, -1, 0);
    return made != MAP_FAILED && !madvise(made, bytes, MADV_DONTFORK);
}

bool back_by(uintptr_t start, const struct memory *memory) {
    int flags = MAP_SHARED | MAP_FIXED;
    void *made = mmap((void *)start, memory->bytes, PROT_NONE, flags, memory->fd, 0);
    return made != MAP_FAILED && !madvise(made, memory->bytes, MADV_DONTFORK);
}

uintptr_t reserve(size_t bytes, size_t alignment, uintptr_t wish) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (wish && wish % alignment == 0) {
        void *made =
            mmap((void *)wish, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (made != MAP_FAILED) {
            madvise(made, bytes, MADV_DONTFORK);
            return (uintptr_t)made;
        }
    }
    void *made = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (made == MAP_FAILED) {
        return 0;
    }
    uintptr_t first = (uintptr_t)made;
    uintptr_t start = (first + alignment - 1) / alignment * alignment;
    if (start > first) {
        munmap(made, start - first);
    }
    munmap((void *)(start + bytes), first + alignment - start);
    madvise((void *)start, bytes, MADV_DONTFORK);
    return start;
}

/* The mappings that make up exactly these addresses, the first of them. */
static int whole_mappings(uintptr_t start, size_t bytes, struct span **first) {
    uintptr_t end = start + bytes;
    *first = book_at(&driver.mappings, start);
    for (uintptr_t at = start; at < end;) {
        struct span *span = book_at(&driver.mappings, at);
        if (!span) {
            return refuse(INVALID_VALUE, "nothing is mapped at %#zx", at);
        }
        if (span->start < start || span->end > end) {
            return refuse(INVALID_VALUE, "%#zx + %zu cuts the mapping %#zx + %zu", start, bytes,
                          span->start, span->end - span->start);
        }
        if (!((struct mapping *)span->what)->handle) {
            return refuse(INVALID_VALUE, "%#zx is memory of cuMemAlloc", at);
        }
        at = span->end;
    }
    return SUCCESS;
}

int check_idle(uintptr_t start, size_t bytes) {
    uintptr_t stream = busy(start, bytes, false);
    if (stream) {
        return refuse(INVALID_VALUE, "work of stream %#zx still uses %#zx + %zu", stream, start,
                      bytes);
    }
    return SUCCESS;
}

int check_device_reach(int device, uintptr_t start, size_t bytes, enum access need) {
    for (uintptr_t at = start; at < start + bytes;) {
        struct span *span = book_at(&driver.mappings, at);
        if (!span) {
            return refuse(INVALID_VALUE, "%#zx + %zu: nothing is mapped at %#zx", start, bytes, at);
        }
        struct mapping *mapping = span->what;
        if ((mapping->access[device] & need) != need) {
            return refuse(INVALID_VALUE, "%#zx + %zu: no access was set at %#zx", start, bytes, at);
        }
        at = span->end;
    }
    return SUCCESS;
}

/* Whether the current device can reach these addresses, and where they lie. */
int check_reach(uintptr_t start, size_t bytes, enum access need, enum place *place) {
    uintptr_t end = start + bytes;
    if (!start || end < start) {
        return refuse(INVALID_VALUE, "no memory at %#zx + %zu", start, bytes);
    }
    if (book_overlap(&driver.reservations, start, end) ||
        book_overlap(&driver.mappings, start, end)) {
        *place = DEVICE;
        return check_device_reach(current_device(), start, bytes, need);
    }
    struct span *host = book_at(&driver.registrations, start);
    *place = host && host->end >= end ? REGISTERED : PAGEABLE;
    if (*place == PAGEABLE && driver.strict_host) {
        return refuse(INVALID_VALUE, "host memory %#zx + %zu is not registered", start, bytes);
    }
    if (*place == REGISTERED && need == WRITE && host->what) {
        return refuse(INVALID_VALUE, "host memory %#zx is registered as read-only", start);
    }
    return SUCCESS;
}

API int cuMemAddressReserve(uintptr_t *address, size_t bytes, size_t alignment, uintptr_t wish,
                            unsigned long long flags) {
    int error = enter("cuMemAddressReserve", VMM);
    if (error) {
        return error;
    }
    error = check_range(wish, bytes);
    if (!error && (flags || (alignment & (alignment - 1)))) {
        error = refuse(INVALID_VALUE, "alignment %zu must be a power of two, flags %llu 0",
                       alignment, flags);
    }
    if (error) {
        return leave(error);
    }
    size_t multiple = alignment > driver.granularity ? alignment : driver.granularity;
    uintptr_t start = reserve(bytes, multiple, wish);
    if (!start) {
        return leave(refuse(OUT_OF_MEMORY, "no %zu bytes of addresses", bytes));
    }
    book_add(&driver.reservations, start, start + bytes, NULL);
    *address = start;
    return leave(SUCCESS);
}

static int address_free(uintptr_t address, size_t bytes) {
    struct span *span = book_at(&driver.reservations, address);
    if (!span || span->start != address || span->end - span->start != bytes) {
        return refuse(INVALID_VALUE, "%#zx + %zu is not a reservation from start to end", address,
                      bytes);
    }
    struct span *left = book_overlap(&driver.mappings, span->start, span->end);
    if (left) {
        return refuse(INVALID_VALUE, "something is still mapped at %#zx", left->start);
    }
    munmap((void *)address, bytes);
    book_remove(&driver.reservations, address);
    return SUCCESS;
}

API int cuMemAddressFree(uintptr_t address, size_t bytes) {
    int error = enter("cuMemAddressFree", VMM);
    return error ? error : leave(address_free(address, bytes));
}

static int map(uintptr_t address, size_t bytes, size_t offset, uintptr_t id,
               unsigned long long flags) {
    struct handle *handle;
    int error = find_handle(id, &handle);
    if (!error) {
        error = check_range(address, bytes);
    }
    if (error) {
        return error;
    }
    if (offset || flags) {
        return refuse(INVALID_VALUE, "offset %zu and flags %llu must be 0", offset, flags);
    }
    if (bytes != handle->memory->bytes) {
        return refuse(INVALID_VALUE, "size %zu, but handle %#zx has %zu", bytes, id,
                      handle->memory->bytes);
    }
    struct span *room = book_at(&driver.reservations, address);
    if (!room || room->end < address + bytes) {
        return refuse(INVALID_VALUE, "%#zx + %zu is not inside one reservation", address, bytes);
    }
    struct span *there = book_overlap(&driver.mappings, address, address + bytes);
    if (there) {
        return refuse(INVALID_VALUE, "something is mapped at %#zx", there->start);
    }
    if (!back_by(address, handle->memory)) {
        return refuse(OPERATING_SYSTEM, "mmap at %#zx: %m", address);
    }
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->memory = handle->memory;
    mapping->handle = handle;
    handle->mappings++;
    book_add(&driver.mappings, address, address + bytes, mapping);
    return SUCCESS;
}

API int cuMemMap(uintptr_t address, size_t bytes, size_t offset, uintptr_t id,
                 unsigned long long flags) {
    int error = enter("cuMemMap", VMM);
    return error ? error : leave(map(address, bytes, offset, id, flags));
}

static int unmap(uintptr_t address, size_t bytes) {
    struct span *first;
    int error = check_range(address, bytes);
    if (!error) {
        error = whole_mappings(address, bytes, &first);
    }
    if (!error) {
        error = check_idle(address, bytes);
    }
    if (!error && !back_by_nothing(address, bytes)) {
        error = refuse(OPERATING_SYSTEM, "mmap at %#zx: %m", address);
    }
    struct span *span;
    while (!error && (span = book_overlap(&driver.mappings, address, address + bytes))) {
        struct mapping *mapping = span->what;
        mapping->handle->mappings--;
        free(mapping);
        book_remove(&driver.mappings, span->start);
    }
    return error;
}

API int cuMemUnmap(uintptr_t address, size_t bytes) {
    int error = enter("cuMemUnmap", VMM);
    return error ? error : leave(unmap(address, bytes));
}

bool protect(const struct span *span) {
    struct mapping *mapping = span->what;
    unsigned access = NO_ACCESS;
    for (int i = 0; i < MAX_DEVICES; i++) {
        access |= mapping->access[i];
    }
    int protection = access == WRITE ? PROT_READ | PROT_WRITE : access ? PROT_READ : PROT_NONE;
    return !mprotect((void *)span->start, span->end - span->start, protection);
}

static int check_access(const struct access_desc *desc, size_t count, bool *less) {
    if (!desc || !count) {
        return refuse(INVALID_VALUE, "no access is described");
    }
    for (size_t i = 0; i < count; i++) {
        int flags = desc[i].flags;
        if (desc[i].location.type != ON_DEVICE) {
            return refuse(INVALID_VALUE, "location type %d, not a device", desc[i].location.type);
        }
        if (flags != NO_ACCESS && flags != READ && flags != WRITE) {
            return refuse(INVALID_VALUE, "no access flags %d", flags);
        }
        int error = check_device(desc[i].location.id);
        if (error) {
            return error;
        }
        *less |= flags != WRITE;
    }
    return SUCCESS;
}

static int set_access(uintptr_t address, size_t bytes, const struct access_desc *desc,
                      size_t count) {
    struct span *span;
    bool less = false;
    int error = check_range(address, bytes);
    if (!error) {
        error = check_access(desc, count, &less);
    }
    if (!error) {
        error = whole_mappings(address, bytes, &span);
    }
    if (!error && less) {
        error = check_idle(address, bytes);
    }
    for (uintptr_t at = address; !error && at < address + bytes; at = span->end, span++) {
        error = check_reached(((struct mapping *)span->what)->memory->device);
        if (error) {
            break;
        }
        struct mapping *mapping = span->what;
        for (size_t i = 0; i < count; i++) {
            mapping->access[desc[i].location.id] = (enum access)desc[i].flags;
        }
        if (!protect(span)) {
            error = refuse(OPERATING_SYSTEM, "mprotect at %#zx: %m", at);
        }
    }
    return error;
}

API int cuMemSetAccess(uintptr_t address, size_t bytes, const struct access_desc *desc,
                       size_t count) {
    int error = enter("cuMemSetAccess", VMM);
    return error ? error : leave(set_access(address, bytes, desc, count));
}

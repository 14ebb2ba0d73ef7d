/* Physical memory (memfds), reserved addresses, and the mapping between them. */
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char MEMFD_NAME[] = "mirage-stand-in";

bool aligned(uintptr_t value) {
    return value % driver.granularity == 0;
}

static int check_range(uintptr_t start, size_t bytes) {
    if (!bytes || !aligned(bytes) || !aligned(start)) {
        return refuse(INVALID_VALUE, "address %#zx and size %zu must be multiples of %zu", start,
                      bytes, driver.granularity);
    }
    if (start + bytes < start) {
        return refuse(INVALID_VALUE, "%#zx + %zu ends beyond all addresses", start, bytes);
    }
    return SUCCESS;
}

static int check_kind(const struct allocation_prop *prop) {
    if (!prop || prop->type != PINNED || prop->location.type != ON_DEVICE) {
        return refuse(INVALID_VALUE, "only pinned memory of a device exists here");
    }
    if (prop->handle_types & ~POSIX_FD) {
        return refuse(NOT_SUPPORTED, "handle type %d: only file descriptors", prop->handle_types);
    }
    return SUCCESS;
}

static int check_prop(const struct allocation_prop *prop) {
    int error = check_kind(prop);
    return error ? error : check_device(prop->location.id);
}

/* Addresses with nothing behind them. A forked child has no part in device memory, and must
 * not see what the parent writes: its copy of the range is left out. */
static bool back_by_nothing(uintptr_t start, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *made = mmap((void *)start, bytes, PROT_NONE, flags, -1, 0);
    return made != MAP_FAILED && !madvise(made, bytes, MADV_DONTFORK);
}

static bool back_by(uintptr_t start, const struct memory *memory) {
    int flags = MAP_SHARED | MAP_FIXED;
    void *made = mmap((void *)start, memory->bytes, PROT_NONE, flags, memory->fd, 0);
    return made != MAP_FAILED && !madvise(made, memory->bytes, MADV_DONTFORK);
}

static uintptr_t reserve(size_t bytes, size_t alignment, uintptr_t wish) {
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

static struct memory *memory_of(int fd, size_t bytes, int device) {
    struct stat status;
    struct memory *memory = fstat(fd, &status) ? NULL : malloc(sizeof *memory);
    if (memory) {
        *memory = (struct memory){fd, device, 0, bytes, status.st_ino};
        driver.device[device].used += bytes;
    }
    return memory;
}

static struct memory *memory_new(size_t bytes, int device) {
    int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    struct memory *memory = ftruncate(fd, (off_t)bytes) ? NULL : memory_of(fd, bytes, device);
    if (!memory) {
        close(fd);
    }
    return memory;
}

static void memory_drop(struct memory *memory) {
    if (--memory->handles > 0) {
        return;
    }
    driver.device[memory->device].used -= memory->bytes;
    close(memory->fd);
    free(memory);
}

static int check_budget(size_t bytes, int device) {
    size_t left = driver.total - driver.device[device].used;
    if (bytes > left) {
        return refuse(OUT_OF_MEMORY, "%zu bytes of memory, %zu of %zu are left", bytes, left,
                      driver.total);
    }
    return SUCCESS;
}

static uintptr_t handle_new(struct memory *memory, bool exportable) {
    struct handle *handle = malloc(sizeof *handle);
    *handle = (struct handle){.memory = memory, .exportable = exportable};
    memory->handles++;
    uintptr_t id = new_id();
    book_add(&driver.handles, id, id + 1, handle);
    return id;
}

static int find_handle(uintptr_t id, struct handle **found) {
    *found = book_get(&driver.handles, id);
    if (!*found) {
        return refuse(INVALID_VALUE, "handle %#zx is unknown or was released", id);
    }
    return check_device((*found)->memory->device);
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

static int check_idle(uintptr_t start, size_t bytes) {
    uintptr_t stream = busy(start, bytes, false);
    if (stream) {
        return refuse(INVALID_VALUE, "work of stream %#zx still uses %#zx + %zu", stream, start,
                      bytes);
    }
    return SUCCESS;
}

static int check_device_reach(uintptr_t start, size_t bytes, enum access need) {
    for (uintptr_t at = start; at < start + bytes;) {
        struct span *span = book_at(&driver.mappings, at);
        if (!span) {
            return refuse(INVALID_VALUE, "%#zx + %zu: nothing is mapped at %#zx", start, bytes, at);
        }
        struct mapping *mapping = span->what;
        if ((mapping->access[current_device()] & need) != need) {
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
        return check_device_reach(start, bytes, need);
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

API int cuMemGetInfo_v2(size_t *left, size_t *total) {
    int error = enter("cuMemGetInfo", CONTEXT);
    if (error) {
        return error;
    }
    *total = driver.total;
    *left = driver.total - driver.device[current_device()].used;
    return leave(SUCCESS);
}

API int cuMemGetAllocationGranularity(size_t *bytes, const struct allocation_prop *prop,
                                      int option) {
    /* The one call of this file that asks a device, and so needs no context. */
    int error = enter("cuMemGetAllocationGranularity", INIT);
    if (error) {
        return error;
    }
    error = check_kind(prop);
    if (!error && (option < 0 || option > 1)) {
        error = refuse(INVALID_VALUE, "no option %d", option);
    }
    if (!error) {
        *bytes = driver.granularity;
    }
    return leave(error);
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

static int create(uintptr_t *id, size_t bytes, const struct allocation_prop *prop,
                  unsigned long long flags) {
    int error = check_prop(prop);
    if (!error) {
        error = check_range(0, bytes);
    }
    if (!error && flags) {
        error = refuse(INVALID_VALUE, "flags %llu must be 0", flags);
    }
    if (!error) {
        error = check_budget(bytes, prop->location.id);
    }
    if (error) {
        return error;
    }
    struct memory *memory = memory_new(bytes, prop->location.id);
    if (!memory) {
        return refuse(OPERATING_SYSTEM, "no memfd of %zu bytes: %m", bytes);
    }
    *id = handle_new(memory, prop->handle_types & POSIX_FD);
    return SUCCESS;
}

API int cuMemCreate(uintptr_t *id, size_t bytes, const struct allocation_prop *prop,
                    unsigned long long flags) {
    int error = enter("cuMemCreate", VMM);
    return error ? error : leave(create(id, bytes, prop, flags));
}

static int release(uintptr_t id) {
    struct handle *handle;
    int error = find_handle(id, &handle);
    if (!error && handle->mappings) {
        error = refuse(INVALID_VALUE, "handle %#zx is still mapped %d times", id, handle->mappings);
    }
    if (!error) {
        book_remove(&driver.handles, id);
        memory_drop(handle->memory);
        free(handle);
    }
    return error;
}

API int cuMemRelease(uintptr_t id) {
    int error = enter("cuMemRelease", VMM);
    return error ? error : leave(release(id));
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

static bool protect(const struct span *span) {
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

static int export_fd(int *fd, uintptr_t id, int type, unsigned long long flags) {
    struct handle *handle;
    int error = find_handle(id, &handle);
    if (error) {
        return error;
    }
    if (type != POSIX_FD || flags) {
        return refuse(INVALID_VALUE, "type %d must be a file descriptor, flags %llu 0", type,
                      flags);
    }
    if (!handle->exportable) {
        return refuse(INVALID_VALUE, "handle %#zx was created without a handle type", id);
    }
    *fd = fcntl(handle->memory->fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? refuse(OPERATING_SYSTEM, "dup: %m") : SUCCESS;
}

API int cuMemExportToShareableHandle(void *shareable, uintptr_t id, int type,
                                     unsigned long long flags) {
    int error = enter("cuMemExportToShareableHandle", VMM);
    return error ? error : leave(export_fd(shareable, id, type, flags));
}

static bool is_ours(int fd, struct stat *status) {
    char path[64], target[64] = {0}, wanted[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(wanted, sizeof wanted, "/memfd:%s ", MEMFD_NAME);
    return readlink(path, target, sizeof target - 1) > 0 && !fstat(fd, status) &&
           !strncmp(target, wanted, strlen(wanted));
}

static int import_fd(uintptr_t *id, int fd, int type) {
    struct stat status;
    if (type != POSIX_FD || !is_ours(fd, &status)) {
        return refuse(INVALID_VALUE, "%d is not a file descriptor of exported memory", fd);
    }
    for (size_t i = 0; i < driver.handles.count; i++) {
        struct handle *known = driver.handles.spans[i].what;
        if (known->memory->inode == status.st_ino) {
            *id = handle_new(known->memory, true);
            return SUCCESS;
        }
    }
    int device = current_device();
    int error = check_range(0, (size_t)status.st_size);
    if (!error) {
        /* Every process counts what it holds: its stand-in knows no other's. */
        error = check_budget((size_t)status.st_size, device);
    }
    if (error) {
        return error;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct memory *memory = own < 0 ? NULL : memory_of(own, (size_t)status.st_size, device);
    if (!memory) {
        return refuse(OPERATING_SYSTEM, "dup: %m");
    }
    *id = handle_new(memory, true);
    return SUCCESS;
}

API int cuMemImportFromShareableHandle(uintptr_t *id, void *shareable, int type) {
    int error = enter("cuMemImportFromShareableHandle", VMM);
    return error ? error : leave(import_fd(id, (int)(intptr_t)shareable, type));
}

static int alloc(uintptr_t *address, size_t bytes) {
    int device = current_device();
    size_t whole = (bytes + driver.granularity - 1) / driver.granularity * driver.granularity;
    if (!bytes || whole < bytes) {
        return refuse(INVALID_VALUE, "no allocation of %zu bytes", bytes);
    }
    int error = check_budget(whole, device);
    if (error) {
        return error;
    }
    uintptr_t start = reserve(whole, driver.granularity, 0);
    struct memory *memory = start ? memory_new(whole, device) : NULL;
    if (!memory || !back_by(start, memory)) {
        return refuse(OPERATING_SYSTEM, "no memory of %zu bytes: %m", whole);
    }
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->memory = memory;
    mapping->access[device] = WRITE;
    memory->handles = 1;
    book_add(&driver.mappings, start, start + whole, mapping);
    book_add(&driver.allocations, start, start + whole, NULL);
    protect(book_at(&driver.mappings, start));
    *address = start;
    return SUCCESS;
}

API int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
    int error = enter("cuMemAlloc", CONTEXT);
    return error ? error : leave(alloc(address, bytes));
}

static int free_allocation(uintptr_t address) {
    struct span *span = book_at(&driver.allocations, address);
    if (!span || span->start != address) {
        return refuse(INVALID_VALUE, "%#zx is not the start of an allocation", address);
    }
    size_t bytes = span->end - span->start;
    struct mapping *mapping = book_at(&driver.mappings, address)->what;
    int error = check_device(mapping->memory->device);
    if (!error) {
        error = check_idle(address, bytes);
    }
    if (!error) {
        munmap((void *)address, bytes);
        memory_drop(mapping->memory);
        free(mapping);
        book_remove(&driver.mappings, address);
        book_remove(&driver.allocations, address);
    }
    return error;
}

API int cuMemFree_v2(uintptr_t address) {
    int error = enter("cuMemFree", CONTEXT);
    return error ? error : leave(free_allocation(address));
}

void memory_clear(void) {
    for (size_t i = 0; i < driver.allocations.count; i++) {
        struct span *span = &driver.allocations.spans[i];
        memory_drop(((struct mapping *)book_get(&driver.mappings, span->start))->memory);
        munmap((void *)span->start, span->end - span->start);
    }
    for (size_t i = 0; i < driver.reservations.count; i++) {
        struct span *span = &driver.reservations.spans[i];
        munmap((void *)span->start, span->end - span->start);
    }
    for (size_t i = 0; i < driver.handles.count; i++) {
        memory_drop(((struct handle *)driver.handles.spans[i].what)->memory);
    }
    book_clear(&driver.allocations, false);
    book_clear(&driver.reservations, false);
    book_clear(&driver.mappings, true);
    book_clear(&driver.handles, true);
}

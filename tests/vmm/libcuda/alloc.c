/* Memory of cuMemAlloc: whole pages of its own, mapped with access from the start. */
#include "standin.h"

#include <stdlib.h>
#include <sys/mman.h>

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
    if (!memory) {
        return refuse(OPERATING_SYSTEM, "no memory of %zu bytes: %m", whole);
    }
    memory->handles = 1;
    if (!back_by(start, memory)) {
        memory_drop(memory);
        return refuse(OPERATING_SYSTEM, "no mapping of %zu bytes at %#zx", whole, start);
    }
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->memory = memory;
    mapping->access[device] = WRITE;
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

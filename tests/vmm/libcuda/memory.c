/* Physical memory: memfds, the handles that hold them, and sharing them between processes. */
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The name of a memory file tells whose memory it is, to whoever imports it. */
static const char MEMFD_NAME[] = "mirage-stand-in";

static int check_kind(const struct allocation_prop *prop) {
    if (!prop || prop->type != PINNED || prop->location.type != ON_DEVICE) {
        return refuse(INVALID_VALUE, "only pinned memory of a device exists here");
    }
    if (prop->handle_types & ~(driver.shareable ? POSIX_FD : 0)) {
        return refuse(NOT_SUPPORTED, "handle type %d: only file descriptors, if any",
                      prop->handle_types);
    }
    return SUCCESS;
}

static int check_prop(const struct allocation_prop *prop) {
    int error = check_kind(prop);
    return error ? error : check_device(prop->location.id);
}

static struct memory *memory_of(int fd, size_t bytes, int device) {
    struct stat status;
    struct memory *memory = fstat(fd, &status) ? NULL : malloc(sizeof *memory);
    if (memory) {
        *memory = (struct memory){fd, device, 0, bytes, status.st_ino};
        if (!shared_add(memory)) {
            free(memory);
            return NULL;
        }
        driver.device[device].used += bytes;
    }
    return memory;
}

struct memory *memory_new(size_t bytes, int device) {
    char name[64];
    snprintf(name, sizeof name, "%s-%d", MEMFD_NAME, device);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    struct memory *memory = ftruncate(fd, (off_t)bytes) ? NULL : memory_of(fd, bytes, device);
    if (!memory) {
        close(fd);
    }
    return memory;
}

void memory_drop(struct memory *memory) {
    if (--memory->handles > 0) {
        return;
    }
    driver.device[memory->device].used -= memory->bytes;
    shared_drop(memory);
    close(memory->fd);
    free(memory);
}

static size_t left_of(int device) {
    size_t used = driver.device[device].used + shared_elsewhere(device);
    return used < driver.total ? driver.total - used : 0;
}

int check_budget(size_t bytes, int device) {
    size_t left = bytes ? left_of(device) : 0; /* asking takes its time on a shared device */
    if (bytes > left) {
        return refuse(OUT_OF_MEMORY, "%zu bytes of memory, %zu of %zu are left", bytes, left,
                      driver.total);
    }
    return SUCCESS;
}

static uintptr_t handle_new(struct memory *memory, bool exportable, bool imported) {
    struct handle *handle = malloc(sizeof *handle);
    *handle = (struct handle){.memory = memory, .exportable = exportable, .imported = imported};
    memory->handles++;
    uintptr_t id = new_id();
    book_add(&driver.handles, id, id + 1, handle);
    return id;
}

int find_handle(uintptr_t id, struct handle **found) {
    *found = book_get(&driver.handles, id);
    if (!*found) {
        return refuse(INVALID_VALUE, "handle %#zx is unknown or was released", id);
    }
    /* What was imported may be another device's: whether this one reaches it is asked when it
     * gets access. */
    return (*found)->imported ? SUCCESS : check_device((*found)->memory->device);
}

API int cuMemGetInfo_v2(size_t *left, size_t *total) {
    int error = enter("cuMemGetInfo", CONTEXT);
    if (error) {
        return error;
    }
    *total = driver.total;
    *left = left_of(current_device());
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
    *id = handle_new(memory, prop->handle_types & POSIX_FD, false);
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
    if (handle->imported) {
        return refuse(INVALID_VALUE, "handle %#zx was imported: its creator exports it", id);
    }
    if (!handle->exportable) {
        return refuse(INVALID_VALUE, "handle %#zx was created without a handle type", id);
    }
    shared_export(handle->memory);
    *fd = fcntl(handle->memory->fd, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? refuse(OPERATING_SYSTEM, "dup: %m") : SUCCESS;
}

API int cuMemExportToShareableHandle(void *shareable, uintptr_t id, int type,
                                     unsigned long long flags) {
    int error = enter("cuMemExportToShareableHandle", VMM);
    return error ? error : leave(export_fd(shareable, id, type, flags));
}

/* The device of an exported memory file; -1: it is none. */
static int device_in(int fd, struct stat *status) {
    char path[64], target[64] = {0}, format[64];
    int device = -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(format, sizeof format, "/memfd:%s-%%d ", MEMFD_NAME);
    bool there = readlink(path, target, sizeof target - 1) > 0 && !fstat(fd, status);
    return there && sscanf(target, format, &device) == 1 ? device : -1;
}

static int import_fd(uintptr_t *id, int fd, int type) {
    struct stat status;
    int device = device_in(fd, &status);
    if (type != POSIX_FD || device < 0) {
        return refuse(INVALID_VALUE, "%d is not a file descriptor of exported memory", fd);
    }
    for (size_t i = 0; i < driver.handles.count; i++) {
        struct handle *known = driver.handles.spans[i].what;
        if (known->memory->inode == status.st_ino) {
            *id = handle_new(known->memory, true, true);
            return SUCCESS;
        }
    }
    int error = device < driver.devices
                    ? check_range(0, (size_t)status.st_size)
                    : refuse(INVALID_DEVICE, "memory of device %d, there are %d", device,
                             driver.devices);
    if (!error) {
        /* Without a shared device every process counts what it holds: it knows no other's. */
        size_t more = shared_knows(status.st_ino) ? 0 : (size_t)status.st_size;
        error = check_budget(more, device);
    }
    if (error) {
        return error;
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct memory *memory = own < 0 ? NULL : memory_of(own, (size_t)status.st_size, device);
    if (!memory) {
        return refuse(OPERATING_SYSTEM, "dup: %m");
    }
    shared_export(memory);
    *id = handle_new(memory, true, true);
    return SUCCESS;
}

API int cuMemImportFromShareableHandle(uintptr_t *id, void *shareable, int type) {
    int error = enter("cuMemImportFromShareableHandle", VMM);
    return error ? error : leave(import_fd(id, (int)(intptr_t)shareable, type));
}

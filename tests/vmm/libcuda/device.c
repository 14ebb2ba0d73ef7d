/* Start, devices and contexts. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

/* The contexts that this thread pushed. Empty again after a reset. */
static _Thread_local struct {
    uint64_t epoch;
    int depth;
    uintptr_t contexts[CONTEXT_DEPTH];
} stack;

static void refresh_stack(void) {
    if (stack.epoch != driver.epoch) {
        stack.epoch = driver.epoch;
        stack.depth = 0;
    }
}

uintptr_t current_context(void) {
    refresh_stack();
    return stack.depth ? stack.contexts[stack.depth - 1] : 0;
}

int device_of(uintptr_t context) {
    for (int i = 0; context && i < MAX_DEVICES; i++) {
        if (driver.device[i].context == context) {
            return i;
        }
    }
    return -1;
}

int current_device(void) {
    return device_of(current_context());
}

static int check_ordinal(int device) {
    if (device < 0 || device >= driver.devices) {
        return refuse(INVALID_DEVICE, "no device %d, there are %d", device, driver.devices);
    }
    return SUCCESS;
}

/* A call for device `id` while the context of another device is current. */
int check_device(int id) {
    int error = check_ordinal(id);
    if (!error && id != current_device()) {
        error = refuse(INVALID_CONTEXT, "for device %d, but the current context is of device %d",
                       id, current_device());
    }
    return error;
}

/* A call about memory of device `id`: from its own context, or from that of one that reaches it. */
int check_reached(int id) {
    int error = check_ordinal(id);
    if (!error && !driver.peers) {
        error = check_device(id);
    }
    return error;
}

API int cuInit(unsigned flags) {
    int error = enter("cuInit", NOTHING);
    if (error) {
        return error;
    }
    if (flags) {
        return leave(refuse(INVALID_VALUE, "flags %u must be 0", flags));
    }
    if (!driver.devices) {
        return leave(refuse(NO_DEVICE, "there is no device"));
    }
    driver.started = true;
    return leave(driver.sticky);
}

API int cuDriverGetVersion(int *version) {
    int error = enter("cuDriverGetVersion", NOTHING);
    if (error) {
        return error;
    }
    *version = driver.version;
    return leave(SUCCESS);
}

API int cuDeviceGetCount(int *count) {
    int error = enter("cuDeviceGetCount", INIT);
    if (error) {
        return error;
    }
    *count = driver.devices;
    return leave(SUCCESS);
}

API int cuDeviceGet(int *device, int ordinal) {
    int error = enter("cuDeviceGet", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(ordinal);
    if (!error) {
        *device = ordinal;
    }
    return leave(error);
}

API int cuDeviceGetName(char *name, int room, int device) {
    int error = enter("cuDeviceGetName", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (!error && room > 0) {
        snprintf(name, (size_t)room, "MIRAGE stand-in");
    }
    return leave(error);
}

API int cuDeviceGetUuid_v2(char *uuid, int device) {
    int error = enter("cuDeviceGetUuid", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (!error) {
        memcpy(uuid, "MIRAGE stand-in", 15);
        uuid[15] = (char)device;
    }
    return leave(error);
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    int error = enter("cuDeviceTotalMem", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (!error) {
        *bytes = driver.total;
    }
    return leave(error);
}

static int attribute_of(int attribute) {
    switch (attribute) {
    case 40: /* asynchronous copy engines */
        return 2;
    case 75: /* compute capability, major */
        return 9;
    case 102: /* virtual memory management */
        return driver.vmm_supported;
    case 103: /* POSIX file descriptors as handles */
        return driver.shareable;
    case 41: /* unified addressing */
    case 91: /* registered host memory has the same address for the device */
    case 99: /* host memory can be registered */
        return 1;
    default:
        return 0;
    }
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int error = enter("cuDeviceGetAttribute", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (!error && attribute <= 0) {
        error = refuse(INVALID_VALUE, "no attribute %d", attribute);
    }
    if (!error) {
        *value = attribute_of(attribute);
    }
    return leave(error);
}

API int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) {
    int error = enter("cuDevicePrimaryCtxRetain", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (!error) {
        struct device *chosen = &driver.device[device];
        if (!chosen->retains++) {
            chosen->context = new_id();
        }
        *context = chosen->context;
    }
    return leave(error);
}

/* What lived in a context that is released stays in the books: it is a leak to be shown. */
API int cuDevicePrimaryCtxRelease_v2(int device) {
    int error = enter("cuDevicePrimaryCtxRelease", INIT);
    if (error) {
        return error;
    }
    error = check_ordinal(device);
    if (error) {
        return leave(error);
    }
    struct device *chosen = &driver.device[device];
    if (!chosen->retains) {
        return leave(refuse(INVALID_CONTEXT, "device %d is not retained", device));
    }
    if (!--chosen->retains) {
        chosen->context = 0;
        for (int i = 0; i < MAX_DEVICES; i++) {
            chosen->reaches[i] = driver.device[i].reaches[device] = false;
        }
    }
    return leave(SUCCESS);
}

static int check_live(uintptr_t context) {
    if (device_of(context) < 0) {
        return refuse(INVALID_CONTEXT, "context %#zx is unknown or was released", context);
    }
    return SUCCESS;
}

API int cuCtxSetCurrent(uintptr_t context) {
    int error = enter("cuCtxSetCurrent", INIT);
    if (error) {
        return error;
    }
    error = context ? check_live(context) : SUCCESS;
    if (error) {
        return leave(error);
    }
    refresh_stack();
    stack.depth -= stack.depth > 0;
    if (context) {
        stack.contexts[stack.depth++] = context;
    }
    return leave(SUCCESS);
}

API int cuCtxGetCurrent(uintptr_t *context) {
    int error = enter("cuCtxGetCurrent", INIT);
    if (error) {
        return error;
    }
    *context = current_context();
    return leave(SUCCESS);
}

API int cuCtxPushCurrent_v2(uintptr_t context) {
    int error = enter("cuCtxPushCurrent", INIT);
    if (error) {
        return error;
    }
    error = check_live(context);
    refresh_stack();
    if (!error && stack.depth == CONTEXT_DEPTH) {
        error = refuse(INVALID_VALUE, "more than %d contexts pushed", CONTEXT_DEPTH);
    }
    if (!error) {
        stack.contexts[stack.depth++] = context;
    }
    return leave(error);
}

API int cuCtxPopCurrent_v2(uintptr_t *context) {
    int error = enter("cuCtxPopCurrent", INIT);
    if (error) {
        return error;
    }
    uintptr_t popped = current_context();
    if (!popped) {
        return leave(refuse(INVALID_CONTEXT, "this thread has no current context"));
    }
    stack.depth--;
    if (context) {
        *context = popped;
    }
    return leave(SUCCESS);
}

API int cuCtxGetDevice(int *device) {
    int error = enter("cuCtxGetDevice", CONTEXT);
    if (error) {
        return error;
    }
    *device = current_device();
    return leave(SUCCESS);
}

API int cuCtxSynchronize(void) {
    int error = enter("cuCtxSynchronize", CONTEXT);
    if (error) {
        return error;
    }
    uint64_t until = driver.tickets, epoch = driver.epoch;
    uintptr_t context = current_context();
    struct stream *stream = driver.running;
    while (!error && stream) {
        if (stream->context != context || !stream->head || stream->head->ticket > until) {
            stream = stream->next;
            continue;
        }
        error = stream_await(stream, until);
        stream = driver.epoch == epoch ? driver.running : NULL; /* the list changed meanwhile */
    }
    return leave(error);
}

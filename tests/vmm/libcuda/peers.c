/* Devices that reach each other's memory.
 *
 * Stricter than the driver, whose cuMemcpyPeerAsync goes through the host where access was not
 * enabled, and which takes any two addresses: here each side's memory must be what it is said to
 * be, and the device whose stream copies must have been let in.
 */
#include "standin.h"

static int check_ordinals(int one, int other) {
    if (one < 0 || one >= driver.devices || other < 0 || other >= driver.devices) {
        return refuse(INVALID_DEVICE, "no devices %d and %d, there are %d", one, other,
                      driver.devices);
    }
    return SUCCESS;
}

API int cuDeviceCanAccessPeer(int *able, int device, int peer) {
    int error = enter("cuDeviceCanAccessPeer", INIT);
    if (error) {
        return error;
    }
    error = check_ordinals(device, peer);
    if (!error) {
        *able = driver.peers && device != peer;
    }
    return leave(error);
}

static int enable(uintptr_t context, unsigned flags) {
    int own = current_device(), peer = device_of(context);
    if (flags) {
        return refuse(INVALID_VALUE, "flags %u must be 0", flags);
    }
    if (peer < 0 || peer == own) {
        return refuse(INVALID_CONTEXT, "context %#zx is no living one of another device", context);
    }
    if (!driver.peers) {
        return refuse(PEER_ACCESS_UNSUPPORTED, "device %d cannot reach device %d", own, peer);
    }
    if (driver.device[own].reaches[peer]) {
        return refuse(PEER_ACCESS_ALREADY_ENABLED, "device %d reaches device %d already", own,
                      peer);
    }
    driver.device[own].reaches[peer] = true;
    return SUCCESS;
}

API int cuCtxEnablePeerAccess(uintptr_t context, unsigned flags) {
    int error = enter("cuCtxEnablePeerAccess", CONTEXT);
    return error ? error : leave(enable(context, flags));
}

static int check_side(uintptr_t address, size_t bytes, uintptr_t context, enum access need) {
    int device = device_of(context), own = current_device();
    if (device < 0) {
        return refuse(INVALID_CONTEXT, "context %#zx is unknown or was released", context);
    }
    if (device != own && !driver.device[own].reaches[device]) {
        return refuse(PEER_ACCESS_NOT_ENABLED, "device %d was not let into device %d", own, device);
    }
    if (!address || address + bytes < address ||
        !book_overlap(&driver.mappings, address, address + bytes)) {
        return refuse(INVALID_VALUE, "%#zx + %zu is not device memory", address, bytes);
    }
    int error = check_device_reach(device, address, bytes, need);
    struct span *span = error ? NULL : book_at(&driver.mappings, address);
    if (span && ((struct mapping *)span->what)->memory->device != device) {
        error = refuse(INVALID_VALUE, "%#zx is memory of device %d, not of %d", address,
                       ((struct mapping *)span->what)->memory->device, device);
    }
    return error;
}

static int copy_peer(uintptr_t dst, uintptr_t to, uintptr_t src, uintptr_t come, size_t bytes,
                     uintptr_t stream_id) {
    int error = SUCCESS;
    struct stream *stream = find_stream(stream_id, &error);
    if (!error) {
        error = check_side(dst, bytes, to, WRITE);
    }
    if (!error) {
        error = check_side(src, bytes, come, READ);
    }
    if (!error && (!bytes || (src < dst + bytes && dst < src + bytes))) {
        error = refuse(INVALID_VALUE, "%zu bytes from %#zx to %#zx: none, or they overlap", bytes,
                       src, dst);
    }
    if (!error) {
        struct work *work = work_new(COPY, 1);
        work->pieces[0] = (struct piece){dst, src, bytes, false};
        stream_enqueue(stream, work);
    }
    return error;
}

API int cuMemcpyPeerAsync(uintptr_t dst, uintptr_t to, uintptr_t src, uintptr_t come, size_t bytes,
                          uintptr_t stream) {
    int error = enter("cuMemcpyPeerAsync", CONTEXT);
    return error ? error : leave(copy_peer(dst, to, src, come, bytes, stream));
}

API int cuMemcpyPeerAsync_ptsz(uintptr_t dst, uintptr_t to, uintptr_t src, uintptr_t come,
                               size_t bytes, uintptr_t stream) {
    return cuMemcpyPeerAsync(dst, to, src, come, bytes, stream ? stream : 2);
}

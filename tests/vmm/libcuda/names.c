/* What can be looked up by name: base names and the version since which that form exists. */
#include "standin.h"

#include <stdio.h>
#include <string.h>

/* Only the addresses matter here, so the parameters are left out. */
#define FUNCTION(name) int name(void)
FUNCTION(cuInit);
FUNCTION(cuDriverGetVersion);
FUNCTION(cuDeviceGetCount);
FUNCTION(cuDeviceGet);
FUNCTION(cuDeviceGetName);
FUNCTION(cuDeviceGetUuid_v2);
FUNCTION(cuDeviceTotalMem_v2);
FUNCTION(cuDeviceGetAttribute);
FUNCTION(cuDevicePrimaryCtxRetain);
FUNCTION(cuDevicePrimaryCtxRelease_v2);
FUNCTION(cuCtxSetCurrent);
FUNCTION(cuCtxGetCurrent);
FUNCTION(cuCtxPushCurrent_v2);
FUNCTION(cuCtxPopCurrent_v2);
FUNCTION(cuCtxGetDevice);
FUNCTION(cuCtxSynchronize);
FUNCTION(cuMemGetInfo_v2);
FUNCTION(cuMemGetAllocationGranularity);
FUNCTION(cuMemAddressReserve);
FUNCTION(cuMemAddressFree);
FUNCTION(cuMemCreate);
FUNCTION(cuMemRelease);
FUNCTION(cuMemMap);
FUNCTION(cuMemUnmap);
FUNCTION(cuMemSetAccess);
FUNCTION(cuMemExportToShareableHandle);
FUNCTION(cuMemImportFromShareableHandle);
FUNCTION(cuMemHostRegister_v2);
FUNCTION(cuMemHostUnregister);
FUNCTION(cuMemAlloc_v2);
FUNCTION(cuMemFree_v2);
FUNCTION(cuMemcpyAsync);
FUNCTION(cuMemcpyAsync_ptsz);
FUNCTION(cuMemcpyBatchAsync_v2);
FUNCTION(cuMemcpyBatchAsync_v2_ptsz);
FUNCTION(cuDeviceCanAccessPeer);
FUNCTION(cuCtxEnablePeerAccess);
FUNCTION(cuMemcpyPeerAsync);
FUNCTION(cuMemcpyPeerAsync_ptsz);
FUNCTION(cuMemsetD8Async);
FUNCTION(cuMemsetD8Async_ptsz);
FUNCTION(cuStreamCreate);
FUNCTION(cuStreamCreateWithPriority);
FUNCTION(cuStreamDestroy_v2);
FUNCTION(cuStreamSynchronize);
FUNCTION(cuStreamSynchronize_ptsz);
FUNCTION(cuStreamQuery);
FUNCTION(cuStreamQuery_ptsz);
FUNCTION(cuStreamWaitEvent);
FUNCTION(cuStreamWaitEvent_ptsz);
FUNCTION(cuEventCreate);
FUNCTION(cuEventRecord);
FUNCTION(cuEventRecord_ptsz);
FUNCTION(cuEventQuery);
FUNCTION(cuEventSynchronize);
FUNCTION(cuEventElapsedTime);
FUNCTION(cuEventDestroy_v2);

enum { PER_THREAD_STREAMS = 2 };
enum { FOUND = 0, NO_SUCH_SYMBOL = 1, VERSION_TOO_LOW = 2 };

API int cuGetErrorName(int error, const char **text);
API int cuGetErrorString(int error, const char **text);
API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                            int *status);
API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);

#define ANY(pointer) ((int (*)(void))(void *)(pointer))

static const struct symbol {
    const char *name;
    int since;
    int (*function)(void), (*per_thread)(void);
} symbols[] = {
    {"cuGetErrorName", 6000, ANY(cuGetErrorName), NULL},
    {"cuGetErrorString", 6000, ANY(cuGetErrorString), NULL},
    {"cuGetProcAddress", 11030, ANY(cuGetProcAddress), NULL},
    {"cuGetProcAddress", 12000, ANY(cuGetProcAddress_v2), NULL},
    {"cuInit", 2000, cuInit, NULL},
    {"cuDriverGetVersion", 2020, cuDriverGetVersion, NULL},
    {"cuDeviceGetCount", 2000, cuDeviceGetCount, NULL},
    {"cuDeviceGet", 2000, cuDeviceGet, NULL},
    {"cuDeviceGetName", 2000, cuDeviceGetName, NULL},
    {"cuDeviceGetUuid", 9020, cuDeviceGetUuid_v2, NULL},
    {"cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2, NULL},
    {"cuDeviceGetAttribute", 2000, cuDeviceGetAttribute, NULL},
    {"cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain, NULL},
    {"cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease_v2, NULL},
    {"cuCtxSetCurrent", 4000, cuCtxSetCurrent, NULL},
    {"cuCtxGetCurrent", 4000, cuCtxGetCurrent, NULL},
    {"cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2, NULL},
    {"cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2, NULL},
    {"cuCtxGetDevice", 2000, cuCtxGetDevice, NULL},
    {"cuCtxSynchronize", 2000, cuCtxSynchronize, NULL},
    {"cuMemGetInfo", 3020, cuMemGetInfo_v2, NULL},
    {"cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity, NULL},
    {"cuMemAddressReserve", 10020, cuMemAddressReserve, NULL},
    {"cuMemAddressFree", 10020, cuMemAddressFree, NULL},
    {"cuMemCreate", 10020, cuMemCreate, NULL},
    {"cuMemRelease", 10020, cuMemRelease, NULL},
    {"cuMemMap", 10020, cuMemMap, NULL},
    {"cuMemUnmap", 10020, cuMemUnmap, NULL},
    {"cuMemSetAccess", 10020, cuMemSetAccess, NULL},
    {"cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle, NULL},
    {"cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle, NULL},
    {"cuMemHostRegister", 6050, cuMemHostRegister_v2, NULL},
    {"cuMemHostUnregister", 4000, cuMemHostUnregister, NULL},
    {"cuMemAlloc", 3020, cuMemAlloc_v2, NULL},
    {"cuMemFree", 3020, cuMemFree_v2, NULL},
    {"cuMemcpyAsync", 4000, cuMemcpyAsync, cuMemcpyAsync_ptsz},
    {"cuMemcpyBatchAsync", 13000, cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz},
    {"cuDeviceCanAccessPeer", 4000, cuDeviceCanAccessPeer, NULL},
    {"cuCtxEnablePeerAccess", 4000, cuCtxEnablePeerAccess, NULL},
    {"cuMemcpyPeerAsync", 4000, cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz},
    {"cuMemsetD8Async", 3020, cuMemsetD8Async, cuMemsetD8Async_ptsz},
    {"cuStreamCreate", 2000, cuStreamCreate, NULL},
    {"cuStreamCreateWithPriority", 5050, cuStreamCreateWithPriority, NULL},
    {"cuStreamDestroy", 4000, cuStreamDestroy_v2, NULL},
    {"cuStreamSynchronize", 2000, cuStreamSynchronize, cuStreamSynchronize_ptsz},
    {"cuStreamQuery", 2000, cuStreamQuery, cuStreamQuery_ptsz},
    {"cuStreamWaitEvent", 3020, cuStreamWaitEvent, cuStreamWaitEvent_ptsz},
    {"cuEventCreate", 2000, cuEventCreate, NULL},
    {"cuEventRecord", 2000, cuEventRecord, cuEventRecord_ptsz},
    {"cuEventQuery", 2000, cuEventQuery, NULL},
    {"cuEventSynchronize", 2000, cuEventSynchronize, NULL},
    {"cuEventElapsedTime", 2000, cuEventElapsedTime, NULL},
    {"cuEventDestroy", 4000, cuEventDestroy_v2, NULL},
};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };

bool known_name(const char *name) {
    for (int i = 0; i < SYMBOLS; i++) {
        if (!strcmp(symbols[i].name, name)) {
            return true;
        }
    }
    return false;
}

/* Answers without the gate, as binding code looks everything up before it calls cuInit. */
API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                            int *status) {
    int found = NO_SUCH_SYMBOL;
    *function = NULL;
    for (int i = 0; i < SYMBOLS; i++) {
        const struct symbol *symbol = &symbols[i];
        if (strcmp(symbol->name, name)) {
            continue;
        }
        if (symbol->since <= version) {
            bool own = flags & PER_THREAD_STREAMS && symbol->per_thread;
            *function = (void *)(own ? symbol->per_thread : symbol->function);
            found = FOUND;
        } else if (found == NO_SUCH_SYMBOL) {
            found = VERSION_TOO_LOW;
        }
    }
    if (status) {
        *status = found;
    }
    return *function ? SUCCESS : NOT_FOUND;
}

API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

#define ERROR(code, text) {code, "CUDA_ERROR_" #code, text}
static const struct error {
    int code;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    ERROR(INVALID_VALUE, "invalid argument"),
    ERROR(OUT_OF_MEMORY, "out of memory"),
    ERROR(NOT_INITIALIZED, "initialization error"),
    ERROR(DEINITIALIZED, "driver shutting down"),
    ERROR(NO_DEVICE, "no device is there"),
    ERROR(INVALID_DEVICE, "invalid device ordinal"),
    ERROR(INVALID_CONTEXT, "invalid device context"),
    ERROR(OPERATING_SYSTEM, "the operating system refused"),
    ERROR(INVALID_HANDLE, "invalid resource handle"),
    ERROR(NOT_FOUND, "named symbol not found"),
    ERROR(PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR(PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    ERROR(PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    ERROR(NOT_READY, "device not ready"),
    ERROR(ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already registered"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not registered"},
    ERROR(NOT_SUPPORTED, "operation not supported"),
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error *find_error(int code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code == code) {
            return &errors[i];
        }
    }
    return NULL;
}

API int cuGetErrorName(int code, const char **text) {
    const struct error *error = find_error(code);
    *text = error ? error->name : NULL;
    return error ? SUCCESS : INVALID_VALUE;
}

API int cuGetErrorString(int code, const char **text) {
    const struct error *error = find_error(code);
    *text = error ? error->text : NULL;
    return error ? SUCCESS : INVALID_VALUE;
}

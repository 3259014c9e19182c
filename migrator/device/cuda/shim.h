// shim.h declares the used part of the CUDA driver API, so that building needs neither
// headers nor a toolkit, and starting needs no driver.
#ifndef CASCADE_CUDA_SHIM_H
#define CASCADE_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

// Types as in cuda.h; handles are pointers.
typedef uint64_t cs_pointer; // CUdeviceptr
typedef struct { char bytes[64]; } cs_ipc; // CUipcMemHandle, passed by value
typedef struct { int type, id; } cs_location; // CUmemLocation
typedef struct { int type, handles; cs_location where; void *win32; unsigned char compression, rdma, other[6]; } cs_allocation; // CUmemAllocationProp
typedef struct { cs_location where; int flags; } cs_access; // CUmemAccessDesc
typedef struct { int order; cs_location src, dst; unsigned flags; } cs_copy; // CUmemcpyAttributes

// CS_CALLS lists every function: its name, its parameters, and the arguments that cs_call
// passes. v are the caller's eight words, which hold the arguments and, from the first
// word on, the results; buf is memory of the caller. The order is that of calls.go.
#define CS_CALLS(X)                                                                                                              \
	X(cuInit, (unsigned), ((unsigned)v[0]))                                                                                      \
	X(cuDriverGetVersion, (int *), ((int *)&v[0]))                                                                               \
	X(cuDeviceGetCount, (int *), ((int *)&v[0]))                                                                                 \
	X(cuDeviceGet, (int *, int), ((int *)&v[0], (int)v[1]))                                                                      \
	X(cuDeviceGetName, (char *, int, int), (buf, (int)v[0], (int)v[1]))                                                          \
	X(cuDeviceGetUuid_v2, (void *, int), (buf, (int)v[0]))                                                                          \
	X(cuDeviceGetPCIBusId, (char *, int, int), (buf, (int)v[0], (int)v[1]))                                                      \
	X(cuDeviceTotalMem_v2, (size_t *, int), ((size_t *)&v[0], (int)v[1]))                                                        \
	X(cuDeviceGetAttribute, (int *, int, int), ((int *)&v[0], (int)v[1], (int)v[2]))                                             \
	X(cuDeviceCanAccessPeer, (int *, int, int), ((int *)&v[0], (int)v[1], (int)v[2]))                                            \
	X(cuDevicePrimaryCtxRetain, (void **, int), ((void **)&v[0], (int)v[1]))                                                     \
	X(cuDevicePrimaryCtxRelease_v2, (int), ((int)v[0]))                                                                          \
	X(cuCtxSetCurrent, (void *), ((void *)(uintptr_t)v[0]))                                                                      \
	X(cuCtxGetStreamPriorityRange, (int *, int *), ((int *)&v[0], (int *)&v[1]))                                                 \
	X(cuMemAlloc_v2, (cs_pointer *, size_t), (&v[0], v[1]))                                                                      \
	X(cuMemFree_v2, (cs_pointer), (v[0]))                                                                                        \
	X(cuMemGetAddressRange_v2, (cs_pointer *, size_t *, cs_pointer), (&v[0], (size_t *)&v[1], v[2]))                             \
	X(cuMemHostAlloc, (void **, size_t, unsigned), ((void **)&v[0], v[1], (unsigned)v[2]))                                       \
	X(cuMemFreeHost, (void *), ((void *)(uintptr_t)v[0]))                                                                        \
	X(cuMemHostGetDevicePointer_v2, (cs_pointer *, void *, unsigned), (&v[0], (void *)(uintptr_t)v[1], 0))                       \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned), ((void *)(uintptr_t)v[0], v[1], (unsigned)v[2]))                         \
	X(cuMemHostUnregister, (void *), ((void *)(uintptr_t)v[0]))                                                                  \
	X(cuIpcGetMemHandle, (cs_ipc *, cs_pointer), (buf, v[0]))                                                                    \
	X(cuIpcOpenMemHandle_v2, (cs_pointer *, cs_ipc, unsigned), (&v[0], *(cs_ipc *)buf, 1 /* lazy peer access */))                \
	X(cuIpcCloseMemHandle, (cs_pointer), (v[0]))                                                                                 \
	X(cuMemGetAllocationGranularity, (size_t *, const cs_allocation *, int), ((size_t *)&v[0], device_memory(&a, v[1], v[2]), 0)) \
	X(cuMemCreate, (void **, size_t, const cs_allocation *, unsigned long long), ((void **)&v[0], v[1], device_memory(&a, v[2], v[3]), 0)) \
	X(cuMemRelease, (void *), ((void *)(uintptr_t)v[0]))                                                                         \
	X(cuMemExportToShareableHandle, (void *, void *, int, unsigned long long), (&v[0], (void *)(uintptr_t)v[1], 1 /* descriptor */, 0)) \
	X(cuMemImportFromShareableHandle, (void **, void *, int), ((void **)&v[0], (void *)(uintptr_t)v[1], 1))                      \
	X(cuMemAddressReserve, (cs_pointer *, size_t, size_t, cs_pointer, unsigned long long), (&v[0], v[1], 0, 0, 0))               \
	X(cuMemAddressFree, (cs_pointer, size_t), (v[0], v[1]))                                                                      \
	X(cuMemMap, (cs_pointer, size_t, size_t, void *, unsigned long long), (v[0], v[1], 0, (void *)(uintptr_t)v[2], 0))           \
	X(cuMemUnmap, (cs_pointer, size_t), (v[0], v[1]))                                                                            \
	X(cuMemSetAccess, (cs_pointer, size_t, const cs_access *, size_t), (v[0], v[1], device_access(&d, v[2], v[3]), 1))           \
	X(cuMemGetHandleForAddressRange, (void *, cs_pointer, size_t, int, unsigned long long), (&v[0], v[1], v[2], 1 /* dma-buf */, 0)) \
	X(cuStreamCreateWithPriority, (void **, unsigned, int), ((void **)&v[0], 1 /* not after the legacy stream */, (int)v[1]))    \
	X(cuStreamDestroy_v2, (void *), ((void *)(uintptr_t)v[0]))                                                                   \
	X(cuStreamSynchronize, (void *), ((void *)(uintptr_t)v[0]))                                                                  \
	X(cuEventCreate, (void **, unsigned), ((void **)&v[0], (unsigned)v[1]))                                                      \
	X(cuEventDestroy_v2, (void *), ((void *)(uintptr_t)v[0]))                                                                    \
	X(cuEventRecord, (void *, void *), ((void *)(uintptr_t)v[0], (void *)(uintptr_t)v[1]))                                       \
	X(cuEventQuery, (void *), ((void *)(uintptr_t)v[0]))                                                                         \
	X(cuEventSynchronize, (void *), ((void *)(uintptr_t)v[0]))                                                                   \
	X(cuEventElapsedTime, (float *, void *, void *), ((float *)&v[0], (void *)(uintptr_t)v[1], (void *)(uintptr_t)v[2]))         \
	X(cuMemcpyDtoDAsync_v2, (cs_pointer, cs_pointer, size_t, void *), (v[0], v[1], v[2], (void *)(uintptr_t)v[3]))               \
	X(cuMemcpyHtoDAsync_v2, (cs_pointer, const void *, size_t, void *), (v[0], (void *)(uintptr_t)v[1], v[2], (void *)(uintptr_t)v[3])) \
	X(cuMemcpyDtoHAsync_v2, (void *, cs_pointer, size_t, void *), ((void *)(uintptr_t)v[0], v[1], v[2], (void *)(uintptr_t)v[3])) \
	X(cuMemsetD8Async, (cs_pointer, unsigned char, size_t, void *), (v[0], (unsigned char)v[1], v[2], (void *)(uintptr_t)v[3]))  \
	X(cuMemcpyBatchAsync_v2, (cs_pointer *, cs_pointer *, size_t *, size_t, cs_copy *, size_t *, size_t, void *),                \
	  (buf, (cs_pointer *)buf + v[0], (size_t *)buf + 2 * v[0], v[0], stream_order(&c), &first, 1, (void *)(uintptr_t)v[1]))      \
	X(cuMemcpyBatchAsync, (cs_pointer *, cs_pointer *, size_t *, size_t, cs_copy *, size_t *, size_t, size_t *, void *),         \
	  (buf, (cs_pointer *)buf + v[0], (size_t *)buf + 2 * v[0], v[0], stream_order(&c), &first, 1, &failed, (void *)(uintptr_t)v[1])) \
	X(cuModuleLoadData, (void **, const void *), ((void **)&v[0], buf))                                                          \
	X(cuModuleUnload, (void *), ((void *)(uintptr_t)v[0]))                                                                       \
	X(cuModuleGetFunction, (void **, void *, const char *), ((void **)&v[0], (void *)(uintptr_t)v[1], buf))                      \
	X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),  \
	  ((void *)(uintptr_t)v[0], (unsigned)v[1], 1, 1, (unsigned)v[2], 1, 1, 0, (void *)(uintptr_t)v[3], parameters(params, buf, v[4]), 0)) \
	X(cuGetErrorName, (int, const char **), ((int)v[1], (const char **)&v[0]))

// CS_PARAMS is the largest number of arguments of a kernel.
#define CS_PARAMS 16

enum {
#define X(name, params, args) CS_##name,
	CS_CALLS(X)
#undef X
	CS_COUNT
};

// cs_name returns the symbol of function op, 0 after the last one.
const char *cs_name(int op);

// cs_call calls function op of table f. It makes context current first, unless that is 0,
// since a goroutine may run on another thread each time. It returns the result of the
// function, or that of cuCtxSetCurrent as a negative number.
int cs_call(void *const *f, int op, uintptr_t context, uint64_t *v, void *buf);

#endif

// asan.c makes every call of the shim through the fake driver, in a process that
// the address sanitizer watches. Argument: the fake's path.
#include "../shim.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *functions[CS_COUNT];
static char done[CS_COUNT];

static void check(int op, uintptr_t context, uint64_t *v, void *buf, int want) {
	int code = cs_call(functions, op, context, v, buf);
	if (code != want) {
		fprintf(stderr, "%s: %d, want %d\n", cs_name(op), code, want);
		exit(1);
	}
	done[op] = 1;
}

// CALL makes a call with these words. It is worth what the first is afterwards.
#define CALL(op, context, buf, ...)         \
	({                                      \
		uint64_t words[8] = {__VA_ARGS__};  \
		memcpy(v, words, sizeof words);     \
		check(CS_##op, context, v, buf, 0); \
		v[0];                               \
	})

int main(int argc, char **argv) {
	if (argc != 2)
		return 2;
	uint64_t *v = malloc(8 * sizeof *v); // its ends are watched
	void *lib = dlopen(argv[1], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (int op = 0; op < CS_COUNT; op++)
		if (!(functions[op] = dlsym(lib, cs_name(op)))) {
			fprintf(stderr, "%s is missing\n", cs_name(op));
			return 1;
		}
	if (cs_name(-1) || cs_name(CS_COUNT) || cs_call(functions, CS_COUNT, 0, v, 0) != 1)
		return 1;
	char *small = malloc(256);
	CALL(cuInit, 0, 0, 0);
	CALL(cuDriverGetVersion, 0, 0, 0);
	CALL(cuDeviceGetCount, 0, 0, 0);
	uint64_t device = CALL(cuDeviceGet, 0, 0, 0, 0) & 0xffffffff;
	CALL(cuDeviceGetName, 0, small, 256, device);
	CALL(cuDeviceGetPCIBusId, 0, small, 256, device);
	void *uuid = malloc(16);
	CALL(cuDeviceGetUuid_v2, 0, uuid, device);
	free(uuid);
	CALL(cuDeviceTotalMem_v2, 0, 0, 0, device);
	CALL(cuDeviceGetAttribute, 0, 0, 0, 75, device);
	CALL(cuDeviceCanAccessPeer, 0, 0, 0, device, 1);
	uint64_t c = CALL(cuDevicePrimaryCtxRetain, 0, 0, 0, device);
	CALL(cuCtxSetCurrent, 0, 0, c);
	CALL(cuCtxGetStreamPriorityRange, c, 0, 0);
	uint64_t p = CALL(cuMemAlloc_v2, c, 0, 0, 1 << 16);
	CALL(cuMemGetAddressRange_v2, c, 0, 0, 0, p + 9);
	uint64_t h = CALL(cuMemHostAlloc, c, 0, 0, 1 << 16, 3);
	CALL(cuMemHostGetDevicePointer_v2, c, 0, 0, h);
	char *own = malloc(4096);
	CALL(cuMemHostRegister_v2, c, 0, (uintptr_t)own, 4096, 3);
	CALL(cuMemHostUnregister, c, 0, (uintptr_t)own);
	free(own);
	cs_ipc *name = malloc(sizeof *name);
	CALL(cuIpcGetMemHandle, c, name, p);
	memset(v, 0, 64);
	check(CS_cuIpcOpenMemHandle_v2, c, v, name, 201); // of this process
	memset(v, 0, 64);
	check(CS_cuIpcCloseMemHandle, c, v, 0, 1);
	free(name);
	uint64_t size = CALL(cuMemGetAllocationGranularity, c, 0, 0, device, 1);
	uint64_t a = CALL(cuMemCreate, c, 0, 0, size, device, 1);
	int fd = (int)CALL(cuMemExportToShareableHandle, c, 0, 0, a);
	uint64_t b = CALL(cuMemImportFromShareableHandle, c, 0, 0, (uint64_t)fd);
	close(fd);
	uint64_t at = CALL(cuMemAddressReserve, c, 0, 0, size);
	CALL(cuMemMap, c, 0, at, size, b);
	CALL(cuMemSetAccess, c, 0, at, size, device, 3);
	close((int)CALL(cuMemGetHandleForAddressRange, c, 0, 0, at, size));
	uint64_t s = CALL(cuStreamCreateWithPriority, c, 0, 0, 0);
	uint64_t e = CALL(cuEventCreate, c, 0, 0, 3), e2 = CALL(cuEventCreate, c, 0, 0, 1);
	CALL(cuEventRecord, c, 0, e, s);
	CALL(cuMemsetD8Async, c, 0, at, 7, 4096, s);
	CALL(cuMemcpyDtoDAsync_v2, c, 0, p, at, 4096, s);
	CALL(cuMemcpyDtoHAsync_v2, c, 0, h, p, 4096, s);
	CALL(cuMemcpyHtoDAsync_v2, c, 0, p, h, 4096, s);
	uint64_t *list = malloc(6 * sizeof *list);
	memcpy(list, (uint64_t[]){p, p + 64, at, at + 64, 64, 64}, 6 * sizeof *list);
	CALL(cuMemcpyBatchAsync_v2, c, list, 2, s);
	CALL(cuMemcpyBatchAsync, c, list, 2, s);
	free(list);
	char *ptx = strdup(".version 7.0\n.target sm_80\n.visible .entry kv_sum(\n");
	uint64_t m = CALL(cuModuleLoadData, c, ptx, 0);
	free(ptx);
	char *entry = strdup("kv_sum");
	uint64_t f = CALL(cuModuleGetFunction, c, entry, 0, m);
	free(entry);
	CALL(cuStreamSynchronize, c, 0, s); // h is written until then
	memcpy((void *)h, (uint64_t[]){p + 4096, 0, 0, 0, 1000, 0}, 48);
	CALL(cuMemcpyHtoDAsync_v2, c, 0, p, h, 48, s);
	uint64_t *args = malloc(7 * sizeof *args);
	memcpy(args, (uint64_t[]){p, 1, p + 40, 1, 1008, 1, h + 64}, 7 * sizeof *args);
	CALL(cuLaunchKernel, c, args, f, 8, 64, s, 7);
	free(args);
	CALL(cuEventRecord, c, 0, e2, s);
	CALL(cuStreamSynchronize, c, 0, s);
	CALL(cuEventSynchronize, c, 0, e2);
	CALL(cuEventQuery, c, 0, e2);
	CALL(cuEventElapsedTime, c, 0, 0, e, e2);
	CALL(cuEventDestroy_v2, c, 0, e);
	CALL(cuEventDestroy_v2, c, 0, e2);
	CALL(cuModuleUnload, c, 0, m);
	CALL(cuStreamDestroy_v2, c, 0, s);
	CALL(cuMemUnmap, c, 0, at, size);
	CALL(cuMemAddressFree, c, 0, at, size);
	CALL(cuMemRelease, c, 0, a);
	CALL(cuMemRelease, c, 0, b);
	CALL(cuMemFreeHost, c, 0, h);
	CALL(cuMemFree_v2, c, 0, p);
	CALL(cuGetErrorName, 0, 0, 0, 700);
	CALL(cuDevicePrimaryCtxRelease_v2, 0, 0, device);
	free(small);
	free(v);
	for (int op = 0; op < CS_COUNT; op++)
		if (!done[op]) {
			fprintf(stderr, "%s is never called\n", cs_name(op));
			return 1;
		}
	puts("every call is clean");
	return 0;
}

#include "shim.h"

static const char *const names[] = {
#define X(name, params, args) #name,
	CS_CALLS(X)
#undef X
};

const char *cs_name(int op) { return op >= 0 && op < CS_COUNT ? names[op] : 0; }

// device_memory describes memory on a device that can be exported as a descriptor.
static const cs_allocation *device_memory(cs_allocation *a, uint64_t device, uint64_t rdma) {
	*a = (cs_allocation){.type = 1 /* pinned */, .handles = 1 /* POSIX descriptor */, .where = {1 /* device */, (int)device}, .rdma = rdma != 0};
	return a;
}

static const cs_access *device_access(cs_access *d, uint64_t device, uint64_t flags) {
	*d = (cs_access){.where = {1, (int)device}, .flags = (int)flags};
	return d;
}

// stream_order makes sources be read in the order of the stream.
static cs_copy *stream_order(cs_copy *c) {
	*c = (cs_copy){.order = 1};
	return c;
}

static void **parameters(void **params, void *words, uint64_t n) {
	for (uint64_t i = 0; i < n && i < CS_PARAMS; i++)
		params[i] = (uint64_t *)words + i;
	return params;
}

int cs_call(void *const *f, int op, uintptr_t context, uint64_t *v, void *buf) {
	cs_allocation a;
	cs_access d;
	cs_copy c;
	size_t first = 0, failed = 0;
	void *params[CS_PARAMS];
	if (context) {
		int code = ((int (*)(void *))f[CS_cuCtxSetCurrent])((void *)context);
		if (code)
			return -code;
	}
	switch (op) {
#define X(name, params, args) \
	case CS_##name:           \
		return ((int(*) params)f[op]) args;
		CS_CALLS(X)
#undef X
	}
	return 1; // CUDA_ERROR_INVALID_VALUE
}

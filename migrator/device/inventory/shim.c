#include "shim.h"

static const char *const names[] = {
#define X(name, params, args) #name,
	CN_CALLS(X)
#undef X
};

const char *cn_name(int op) { return op >= 0 && op < CN_COUNT ? names[op] : 0; }

#define HANDLE(i) ((void *)(uintptr_t)v[i])
#define NUMBER(i) ((unsigned *)&v[i]) // its low half: Linux on the machines with GPUs is little-endian

int cn_call(void *const *f, int op, uint64_t *v, void *buf) {
	switch (op) {
#define X(name, params, args) \
	case CN_##name:           \
		return ((int(*) params)f[op]) args;
		CN_CALLS(X)
#undef X
	}
	return 2; // NVML_ERROR_INVALID_ARGUMENT
}

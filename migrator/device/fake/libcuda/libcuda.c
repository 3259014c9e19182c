// libcuda.c is a CUDA driver without a GPU, for tests: the real cgo code runs against it
// on any machine.
//
// Device memory is a memfd, so that IPC handles and exported descriptors work between
// processes. Streams are threads that do their work after it was submitted, so that a
// missing wait is detected. Kernels run transport/core.h thread by thread. Any call can be
// made to fail, and every open handle is counted.
//
// Environment: FAKE_CUDA_DEVICES (default 2), FAKE_CUDA_FAIL ("call:nth:code" as in
// fake_fail, separated by commas), FAKE_CUDA_DELAY (microseconds before each work of a
// stream).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { unsigned x, y, z, w; } uint4;
#define KV_DEVICE static inline
#define KV_LOAD(p) (*(p))
#define KV_STORE(p, v) (*(p) = (v))
#include "core.h"

#define EXPORT __attribute__((visibility("default")))

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
	INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
	OS_ERROR = 304, DEVICE_UNAVAILABLE = 46, NOT_SUPPORTED = 801,
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

// ---- control ----

#define MAX_RULES 64
static struct rule { char call[64]; long left; int code; } rules[MAX_RULES];
static int rule_count, environment_read;
static long held, delay, no_dmabuf, no_peer, wrong;
#define MAX_CALLS 128
static struct { const char *name; long n; } calls[MAX_CALLS];

// The open handles, by kind.
enum { CONTEXTS, MEMORY, HOST, REGISTERED, STREAMS, EVENTS, IPC, ALLOCATIONS, ADDRESSES, MAPPINGS, MODULES, KINDS };
static const char *const kinds[KINDS] = {"contexts", "memory", "host", "registered", "streams", "events", "ipc", "allocations", "addresses", "mappings", "modules"};
static long live[KINDS];

static void fail_locked(const char *call, long nth, int code) {
	int i = 0;
	while (i < rule_count && rules[i].left) // one that is used up makes room
		i++;
	if (i == MAX_RULES)
		abort();
	snprintf(rules[i].call, sizeof rules[0].call, "%s", call);
	rules[i].left = nth;
	rules[i].code = code;
	rule_count += i == rule_count;
}

// fake_fail makes the nth call of a name from now on, counted from 1, fail; a negative
// one means that call and all after it. The name "*" means any call.
EXPORT int fake_fail(const char *call, long nth, long code) {
	pthread_mutex_lock(&mu);
	fail_locked(call, nth, (int)code);
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_clear(const char *unused, long unused2, long unused3) {
	pthread_mutex_lock(&mu);
	rule_count = 0;
	held = 0;
	no_dmabuf = no_peer = wrong = 0;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_hold makes streams wait before their next work until it is called with 0.
EXPORT int fake_hold(const char *unused, long hold, long unused3) {
	pthread_mutex_lock(&mu);
	held = hold;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_no_dmabuf makes devices export no dma-buf, until it is called with 0.
EXPORT int fake_no_dmabuf(const char *unused, long none, long unused3) {
	pthread_mutex_lock(&mu);
	no_dmabuf = none;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_no_peer makes devices unable to reach each other, until it is called with 0.
EXPORT int fake_no_peer(const char *unused, long none, long unused3) {
	pthread_mutex_lock(&mu);
	no_peer = none;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_wrong makes work produce wrong results without an error, until it is called with
// 0. The checksums of a target stay right.
enum {
	MOVES_NOTHING = 1, // kernels sum what they read, and leave the target as it was
	ONE_SOURCE,        // kernels and batches read every block at the first one's place
	NEXT_TARGET,       // kernels write each block to the place of the next one
	CUT_SHORT,         // kernels leave the last 16 bytes of each piece out, but not of the sum
	NO_SUMS,           // kernels copy, and report no sums
	COPIES_NOTHING,    // copies of a page and more leave the target as it was
};
EXPORT int fake_wrong(const char *unused, long how, long unused3) {
	pthread_mutex_lock(&mu);
	wrong = how;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_calls returns how often a call was made.
EXPORT int fake_calls(const char *call, long unused2, long unused3) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_CALLS && calls[i].name; i++)
		if (!strcmp(calls[i].name, call))
			n = calls[i].n;
	pthread_mutex_unlock(&mu);
	return (int)n;
}

// fake_live returns the number of open handles of a kind, "" for all kinds.
EXPORT int fake_live(const char *kind, long unused2, long unused3) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < KINDS; i++)
		if (!*kind || !strcmp(kind, kinds[i]))
			n += live[i];
	pthread_mutex_unlock(&mu);
	return (int)n;
}

static void count(int kind, long by) {
	pthread_mutex_lock(&mu);
	live[kind] += by;
	pthread_mutex_unlock(&mu);
}

// ---- contexts ----

#define MAX_DEVICES 128
static struct context { int device, retained, broken, dead; } contexts[MAX_DEVICES];
static int initialized, devices = 2;
static __thread struct context *current;

static int sticky(int code) {
	return code == 4 || code == 214 || code == 220 || code == 226 || code == 700 || code == 702 || code == 709 || code == 710 || (code >= 714 && code <= 719) ||
		code == 721 || code == 805 || code == 806 || code == 810 || code == 911 || code == 999;
}

// fake_devices sets the number of devices.
EXPORT int fake_devices(const char *unused, long n, long unused3) {
	pthread_mutex_lock(&mu);
	devices = n < MAX_DEVICES ? (int)n : MAX_DEVICES;
	environment_read = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_break fails a device's context, like a fault of a kernel; fake_dead also makes new
// contexts fail, until fake_mend.
EXPORT int fake_break(const char *unused, long device, long unused3) {
	pthread_mutex_lock(&mu);
	if (contexts[device].retained)
		contexts[device].broken = 719;
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_dead(const char *unused, long device, long unused3) {
	fake_break(unused, device, 0);
	contexts[device].dead = 1;
	return 0;
}

EXPORT int fake_mend(const char *unused, long device, long unused3) {
	contexts[device].dead = 0;
	return 0;
}

// enter counts a call, and returns the code with which it fails. Sticky errors stay with
// the context, like those of a real driver.
static int enter(const char *call) {
	int code = SUCCESS;
	pthread_mutex_lock(&mu);
	if (!environment_read) {
		environment_read = 1;
		const char *env = getenv("FAKE_CUDA_FAIL");
		char copy[4096], *save = 0;
		snprintf(copy, sizeof copy, "%s", env ? env : "");
		for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(0, ",", &save)) {
			char name[64];
			long nth;
			int with;
			if (sscanf(one, "%63[^:]:%ld:%d", name, &nth, &with) == 3)
				fail_locked(name, nth, with);
		}
		if ((env = getenv("FAKE_CUDA_DEVICES")))
			devices = atoi(env) < MAX_DEVICES ? atoi(env) : MAX_DEVICES;
		if ((env = getenv("FAKE_CUDA_DELAY")))
			delay = atol(env);
	}
	for (int i = 0; i < MAX_CALLS; i++) {
		if (!calls[i].name)
			calls[i].name = call;
		if (!strcmp(calls[i].name, call)) {
			calls[i].n++;
			break;
		}
	}
	for (int i = 0; i < rule_count && !code; i++)
		if (!strcmp(rules[i].call, call) || !strcmp(rules[i].call, "*")) {
			if ((rules[i].left > 0 && --rules[i].left == 0) || rules[i].left == -1)
				code = rules[i].code;
			if (rules[i].left < -1)
				rules[i].left++;
		}
	if (current && current->retained && sticky(code))
		current->broken = code;
	pthread_mutex_unlock(&mu);
	return code;
}

#define CALL(name) do { int failed_ = enter(#name); if (failed_) return failed_; if (!initialized) return NOT_INITIALIZED; } while (0)
// Calls that need a context that has not failed.
#define WORK(name) do { CALL(name); if (!current || !current->retained) return INVALID_CONTEXT; if (current->broken) return current->broken; } while (0)

EXPORT int cuInit(unsigned flags) {
	int code = enter("cuInit");
	if (code)
		return code;
	if (flags)
		return INVALID_VALUE;
	if (devices < 1)
		return 100; // CUDA_ERROR_NO_DEVICE
	for (int i = 0; i < MAX_DEVICES; i++)
		contexts[i].device = i;
	initialized = 1;
	return SUCCESS;
}

static const struct { int code; const char *name, *text; } errors[] = {
	{0, "CUDA_SUCCESS", "no error"}, {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"}, {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"}, {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}, {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
	{304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}, {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"}, {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}, {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT int cuGetErrorName(int code, const char **name) {
	for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return *name = errors[i].name, SUCCESS;
	return *name = 0, INVALID_VALUE;
}

EXPORT int cuGetErrorString(int code, const char **text) {
	for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return *text = errors[i].text, SUCCESS;
	return *text = 0, INVALID_VALUE;
}

EXPORT int cuDriverGetVersion(int *version) { CALL(cuDriverGetVersion); *version = 12080; return SUCCESS; }
EXPORT int cuDeviceGetCount(int *n) { CALL(cuDeviceGetCount); *n = devices; return SUCCESS; }

EXPORT int cuDeviceGet(int *device, int ordinal) {
	CALL(cuDeviceGet);
	if (ordinal < 0 || ordinal >= devices)
		return INVALID_DEVICE;
	*device = ordinal;
	return SUCCESS;
}

#define DEVICE(d) do { if ((d) < 0 || (d) >= devices) return INVALID_DEVICE; } while (0)

EXPORT int cuDeviceGetName(char *name, int size, int device) {
	CALL(cuDeviceGetName);
	DEVICE(device);
	snprintf(name, size, "Fake GPU %d", device);
	return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
	CALL(cuDeviceGetUuid_v2);
	DEVICE(device);
	memcpy(uuid, "cascade fake gpu", 16);
	uuid[15] = '0' + device;
	return SUCCESS;
}

EXPORT int cuDeviceGetPCIBusId(char *id, int size, int device) {
	CALL(cuDeviceGetPCIBusId);
	DEVICE(device);
	snprintf(id, size, "0000:%02X:00.0", 0x10 * (device + 1)); // as the fake of NVML
	return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
	CALL(cuDeviceTotalMem_v2);
	DEVICE(device);
	*bytes = 1ull << 34;
	return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
	CALL(cuDeviceGetAttribute);
	DEVICE(device);
	switch (attribute) {
	case 16: *value = 4; return SUCCESS;                            // multiprocessors
	case 75: *value = 9; return SUCCESS;                            // compute capability, major
	case 76: *value = 0; return SUCCESS;                            // minor
	case 40: case 41: case 102: case 103: *value = 1; return SUCCESS; // async engines, unified addressing, VMM, POSIX descriptors
	case 110: case 124: *value = !no_dmabuf; return SUCCESS;        // VMM for NICs, dma-buf
	}
	*value = 0;
	return SUCCESS;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer) {
	CALL(cuDeviceCanAccessPeer);
	DEVICE(device);
	DEVICE(peer);
	*can = device != peer && !no_peer;
	return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(struct context **out, int device) {
	CALL(cuDevicePrimaryCtxRetain);
	DEVICE(device);
	if (contexts[device].dead)
		return DEVICE_UNAVAILABLE;
	pthread_mutex_lock(&mu);
	contexts[device].retained++;
	live[CONTEXTS]++;
	pthread_mutex_unlock(&mu);
	*out = &contexts[device];
	return SUCCESS;
}

static void destroy_all(struct context *c);

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
	CALL(cuDevicePrimaryCtxRelease_v2);
	DEVICE(device);
	pthread_mutex_lock(&mu);
	int code = contexts[device].retained > 0 ? SUCCESS : INVALID_CONTEXT;
	if (!code) {
		live[CONTEXTS]--;
		contexts[device].retained--;
	}
	int last = !code && contexts[device].retained == 0;
	pthread_mutex_unlock(&mu);
	if (last) {
		destroy_all(&contexts[device]);
		contexts[device].broken = 0;
	}
	return code;
}

EXPORT int cuCtxSetCurrent(struct context *c) {
	CALL(cuCtxSetCurrent);
	current = c;
	return SUCCESS;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	WORK(cuCtxGetStreamPriorityRange);
	*least = 0;
	*greatest = -5;
	return SUCCESS;
}

// ---- memory ----

// A span is a range of addresses of device memory.
static struct span { uintptr_t base; size_t size; int fd, kind, peer, rdma; struct context *context; struct span *next; } *spans;

static void add_span(uintptr_t base, size_t size, int fd, int kind) {
	struct span *s = calloc(1, sizeof *s);
	s->base = base;
	s->size = size;
	s->fd = fd;
	s->kind = kind;
	s->context = current;
	pthread_mutex_lock(&mu);
	s->next = spans;
	spans = s;
	live[kind]++;
	pthread_mutex_unlock(&mu);
}

// take_span removes and returns the span of a kind at base.
static int take_span(uintptr_t base, int kind, struct span *out) {
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	for (struct span **at = &spans; *at; at = &(*at)->next)
		if ((*at)->base == base && (*at)->kind == kind) {
			struct span *s = *at;
			*out = *s;
			*at = s->next;
			free(s);
			live[kind]--;
			code = SUCCESS;
			break;
		}
	pthread_mutex_unlock(&mu);
	return code;
}

static int find_span(uintptr_t address, int kind, struct span *out) {
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	for (struct span *s = spans; s; s = s->next)
		if (address >= s->base && address - s->base < s->size && (kind < 0 || s->kind == kind)) {
			*out = *s;
			code = SUCCESS;
			break;
		}
	pthread_mutex_unlock(&mu);
	return code;
}

// An object is anything in a context besides memory.
static struct object { int kind; void *p; struct context *context; struct object *next; } *objects;

static void add_object(int kind, void *p) {
	struct object *o = malloc(sizeof *o);
	*o = (struct object){kind, p, current, 0};
	pthread_mutex_lock(&mu);
	o->next = objects;
	objects = o;
	live[kind]++;
	pthread_mutex_unlock(&mu);
}

// take_object removes p, and reports whether there was such an object.
static int take_object(int kind, void *p) {
	int code = INVALID_HANDLE;
	pthread_mutex_lock(&mu);
	for (struct object **at = &objects; *at; at = &(*at)->next)
		if ((*at)->kind == kind && (*at)->p == p) {
			struct object *o = *at;
			*at = o->next;
			free(o);
			live[kind]--;
			code = SUCCESS;
			break;
		}
	pthread_mutex_unlock(&mu);
	return code;
}

static int new_file(size_t size) {
	int fd = memfd_create("fake-device", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

EXPORT int cuMemAlloc_v2(uintptr_t *out, size_t size) {
	WORK(cuMemAlloc_v2);
	if (!size)
		return INVALID_VALUE;
	int fd = size > 1ull << 34 ? -1 : new_file(size);
	if (fd < 0)
		return OUT_OF_MEMORY;
	void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		close(fd);
		return OUT_OF_MEMORY;
	}
	add_span(*out = (uintptr_t)p, size, fd, MEMORY);
	return SUCCESS;
}

EXPORT int cuMemFree_v2(uintptr_t p) {
	WORK(cuMemFree_v2);
	struct span s;
	int code = take_span(p, MEMORY, &s);
	if (code)
		return code;
	munmap((void *)s.base, s.size);
	close(s.fd);
	return SUCCESS;
}

EXPORT int cuMemGetAddressRange_v2(uintptr_t *base, size_t *size, uintptr_t p) {
	WORK(cuMemGetAddressRange_v2);
	struct span s;
	if (find_span(p, MEMORY, &s) && find_span(p, IPC, &s) && find_span(p, MAPPINGS, &s))
		return INVALID_VALUE;
	*base = s.base;
	*size = s.size;
	return SUCCESS;
}

EXPORT int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
	WORK(cuMemHostAlloc);
	(void)flags;
	if (!size)
		return INVALID_VALUE;
	void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return OUT_OF_MEMORY;
	add_span((uintptr_t)p, size, -1, HOST);
	*out = p;
	return SUCCESS;
}

EXPORT int cuMemFreeHost(void *p) {
	WORK(cuMemFreeHost);
	struct span s;
	int code = take_span((uintptr_t)p, HOST, &s);
	if (!code)
		munmap(p, s.size);
	return code;
}

EXPORT int cuMemHostGetDevicePointer_v2(uintptr_t *out, void *p, unsigned flags) {
	WORK(cuMemHostGetDevicePointer_v2);
	struct span s;
	if (flags || (find_span((uintptr_t)p, HOST, &s) && find_span((uintptr_t)p, REGISTERED, &s)))
		return INVALID_VALUE;
	*out = (uintptr_t)p;
	return SUCCESS;
}

EXPORT int cuMemHostRegister_v2(void *p, size_t size, unsigned flags) {
	WORK(cuMemHostRegister_v2);
	(void)flags;
	if (!p || !size)
		return INVALID_VALUE;
	add_span((uintptr_t)p, size, -1, REGISTERED);
	return SUCCESS;
}

EXPORT int cuMemHostUnregister(void *p) {
	WORK(cuMemHostUnregister);
	struct span s;
	return take_span((uintptr_t)p, REGISTERED, &s);
}

// ---- IPC ----

// ipc_handle is the content of the 64 bytes.
typedef union { char bytes[64]; struct { uint64_t magic; int64_t pid, fd; uint64_t size, base; } of; } ipc_handle;
#define IPC_MAGIC 0x6670632d656b6166ull

EXPORT int cuIpcGetMemHandle(ipc_handle *out, uintptr_t p) {
	WORK(cuIpcGetMemHandle);
	struct span s;
	if (find_span(p, MEMORY, &s)) // neither imported memory nor VMM has one
		return INVALID_VALUE;
	memset(out, 0, sizeof *out);
	out->of.magic = IPC_MAGIC;
	out->of.pid = getpid();
	out->of.fd = s.fd;
	out->of.size = s.size;
	out->of.base = s.base;
	return SUCCESS;
}

EXPORT int cuIpcOpenMemHandle_v2(uintptr_t *out, ipc_handle h, unsigned flags) {
	WORK(cuIpcOpenMemHandle_v2);
	if (h.of.magic != IPC_MAGIC || flags != 1)
		return INVALID_VALUE;
	if (h.of.pid == getpid())
		return INVALID_CONTEXT; // as a real driver: not in the process that owns it
	struct span s;
	pthread_mutex_lock(&mu); // the same memory again is at the same address, and counted
	for (struct span *at = spans; at; at = at->next)
		if (at->kind == IPC && at->peer == h.of.pid && at->fd == h.of.fd && at->size == h.of.size) {
			*out = at->base;
			pthread_mutex_unlock(&mu);
			add_span(*out, h.of.size, h.of.fd, IPC);
			pthread_mutex_lock(&mu);
			spans->peer = h.of.pid;
			pthread_mutex_unlock(&mu);
			return SUCCESS;
		}
	pthread_mutex_unlock(&mu);
	(void)s;
	char path[64];
	snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)h.of.pid, (long long)h.of.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return INVALID_VALUE;
	void *p = mmap(0, h.of.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return OUT_OF_MEMORY;
	add_span(*out = (uintptr_t)p, h.of.size, (int)h.of.fd, IPC);
	pthread_mutex_lock(&mu);
	spans->peer = h.of.pid;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

EXPORT int cuIpcCloseMemHandle(uintptr_t p) {
	WORK(cuIpcCloseMemHandle);
	struct span s, other;
	int code = take_span(p, IPC, &s);
	if (!code && find_span(p, IPC, &other))
		munmap((void *)s.base, s.size);
	return code;
}

// ---- virtual memory management ----

typedef struct { int type, id; } location;
typedef struct { int type, handles; location where; void *win32; unsigned char compression, rdma, other[6]; } allocation_properties;
typedef struct { location where; int flags; } access_description;
#define GRANULARITY (2ull << 20)

// An allocation is memory without an address.
typedef struct { int fd, rdma; size_t size; } allocation;

EXPORT int cuMemGetAllocationGranularity(size_t *out, const allocation_properties *prop, int option) {
	CALL(cuMemGetAllocationGranularity);
	if (prop->type != 1 || option > 1 || (prop->rdma && no_dmabuf))
		return INVALID_VALUE;
	*out = GRANULARITY;
	return SUCCESS;
}

EXPORT int cuMemCreate(allocation **out, size_t size, const allocation_properties *prop, unsigned long long flags) {
	CALL(cuMemCreate);
	if (!size || size % GRANULARITY || prop->type != 1 || prop->where.type != 1 || (prop->rdma && no_dmabuf) || flags)
		return INVALID_VALUE;
	int fd = size > 1ull << 34 ? -1 : new_file(size);
	if (fd < 0)
		return OUT_OF_MEMORY;
	allocation *a = malloc(sizeof *a);
	a->fd = fd;
	a->rdma = prop->rdma;
	a->size = size;
	count(ALLOCATIONS, 1);
	*out = a;
	return SUCCESS;
}

EXPORT int cuMemRelease(allocation *a) {
	CALL(cuMemRelease);
	if (!a)
		return INVALID_VALUE;
	close(a->fd);
	free(a);
	count(ALLOCATIONS, -1);
	return SUCCESS;
}

EXPORT int cuMemExportToShareableHandle(int *out, allocation *a, int type, unsigned long long flags) {
	CALL(cuMemExportToShareableHandle);
	if (type != 1 || flags)
		return INVALID_VALUE;
	int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return OS_ERROR;
	*out = fd;
	return SUCCESS;
}

EXPORT int cuMemImportFromShareableHandle(allocation **out, void *handle, int type) {
	CALL(cuMemImportFromShareableHandle);
	struct stat info;
	int fd = (int)(intptr_t)handle;
	if (type != 1 || fstat(fd, &info) || !S_ISREG(info.st_mode) || !info.st_size || info.st_size % GRANULARITY)
		return INVALID_VALUE;
	allocation *a = malloc(sizeof *a);
	a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	a->rdma = 1; // a file has no such property
	a->size = info.st_size;
	count(ALLOCATIONS, 1);
	*out = a;
	return SUCCESS;
}

EXPORT int cuMemAddressReserve(uintptr_t *out, size_t size, size_t alignment, uintptr_t address, unsigned long long flags) {
	CALL(cuMemAddressReserve);
	(void)alignment;
	if (!size || size % GRANULARITY || address || flags)
		return INVALID_VALUE;
	void *p = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return OUT_OF_MEMORY;
	add_span(*out = (uintptr_t)p, size, -1, ADDRESSES);
	return SUCCESS;
}

EXPORT int cuMemAddressFree(uintptr_t p, size_t size) {
	CALL(cuMemAddressFree);
	struct span s;
	if (!find_span(p, MAPPINGS, &s))
		return INVALID_VALUE; // something is mapped there still
	int code = take_span(p, ADDRESSES, &s);
	if (!code)
		munmap((void *)p, size);
	return code;
}

EXPORT int cuMemMap(uintptr_t p, size_t size, size_t offset, allocation *a, unsigned long long flags) {
	CALL(cuMemMap);
	struct span s;
	if (find_span(p, ADDRESSES, &s) || p + size > s.base + s.size || offset || flags || size > a->size)
		return INVALID_VALUE;
	if (mmap((void *)p, size, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) == MAP_FAILED)
		return OS_ERROR;
	add_span(p, size, fcntl(a->fd, F_DUPFD_CLOEXEC, 0), MAPPINGS);
	pthread_mutex_lock(&mu);
	spans->rdma = a->rdma;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

EXPORT int cuMemUnmap(uintptr_t p, size_t size) {
	CALL(cuMemUnmap);
	struct span s;
	int code = take_span(p, MAPPINGS, &s);
	if (code)
		return code;
	close(s.fd);
	mmap((void *)p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return SUCCESS;
}

EXPORT int cuMemSetAccess(uintptr_t p, size_t size, const access_description *d, size_t n) {
	CALL(cuMemSetAccess);
	struct span s;
	if (n != 1 || d->where.type != 1 || find_span(p, MAPPINGS, &s))
		return INVALID_VALUE;
	int prot = d->flags == 3 ? PROT_READ | PROT_WRITE : d->flags == 1 ? PROT_READ : PROT_NONE;
	return mprotect((void *)p, size, prot) ? OS_ERROR : SUCCESS;
}

// A dma-buf is the memory's file here, positioned at the first byte of the range: that is
// how the fake of libibverbs knows where the range begins.
EXPORT int cuMemGetHandleForAddressRange(int *out, uintptr_t p, size_t size, int type, unsigned long long flags) {
	WORK(cuMemGetHandleForAddressRange);
	struct span s;
	size_t page = sysconf(_SC_PAGESIZE);
	if (no_dmabuf)
		return NOT_SUPPORTED;
	if (type != 1 || flags || !size || p % page || size % page || (find_span(p, MEMORY, &s) && (find_span(p, MAPPINGS, &s) || !s.rdma)) ||
	    p + size > s.base + (s.size + page - 1) / page * page)
		return INVALID_VALUE;
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", s.fd);
	int fd = open(path, O_RDWR); // not of the process's children alone: who asks sees to that
	if (fd < 0)
		return OS_ERROR;
	if (lseek(fd, p - s.base, SEEK_SET) < 0) {
		close(fd);
		return OS_ERROR;
	}
	*out = fd;
	return SUCCESS;
}

// ---- streams: work that is done later, by a thread ----

typedef struct event { pthread_mutex_t mu; long recorded, done; struct timespec at; } event;
enum { WORK_COPY, WORK_SET, WORK_KERNEL, WORK_EVENT, WORK_END };
typedef struct work {
	int kind, how;
	uintptr_t dst, src;
	size_t size;
	unsigned value, grid, block;
	uint64_t args[7];
	event *event;
	long number;
	struct work *next;
} work;
typedef struct stream {
	pthread_mutex_t mu;
	pthread_cond_t more, idle;
	pthread_t thread;
	work *first, **last;
	struct context *context;
	int pending;
} stream;

static void run_kernel(const work *w, long how) {
	const uint64_t *a = w->args;
	const struct kv_region *regions = (const void *)(uintptr_t)a[0];
	uint64_t *sums = (void *)(uintptr_t)a[6];
	uint64_t entry = a[1] * a[5], items = a[3] * entry;
	for (uint64_t item = 0; item < items; item++) {
		const kv_u32 *ids = (const kv_u32 *)(uintptr_t)a[2];
		struct kv_work k = kv_item(w->how, regions, a[1], ids, a[4], a[5], item);
		uint64_t sum = 0;
		if (how == ONE_SOURCE && w->how != KV_SUM_DST)
			k.src = kv_item(w->how, regions, a[1], ids, a[4], a[5], item % entry).src;
		if (how == NEXT_TARGET && k.dst)
			k.dst = kv_item(w->how, regions, a[1], ids, a[4], a[5], (item + entry) % items).dst;
		if (how == CUT_SHORT && k.dst && k.bytes > 16) {
			struct kv_work some = k;
			some.bytes -= 16;
			for (unsigned t = 0; t < w->block; t++)
				kv_part(some, t, w->block);
		}
		if (how == MOVES_NOTHING || how == CUT_SHORT)
			k.dst = 0;
		for (unsigned t = 0; t < w->block; t++)
			sum += kv_part(k, t, w->block);
		if (how != NO_SUMS || w->how == KV_SUM_DST)
			sums[item] = sum;
	}
}

static void *run_stream(void *arg) {
	stream *s = arg;
	for (;;) {
		pthread_mutex_lock(&s->mu);
		while (!s->first)
			pthread_cond_wait(&s->more, &s->mu);
		work *w = s->first;
		if (!(s->first = w->next))
			s->last = &s->first;
		pthread_mutex_unlock(&s->mu);
		int end = w->kind == WORK_END;
		int broken, wait;
		long how;
		do {
			pthread_mutex_lock(&mu);
			how = wrong;
			wait = held && !end && !s->context->broken;
			broken = s->context->broken;
			pthread_mutex_unlock(&mu);
			if (wait || delay)
				usleep(wait ? 200 : delay);
		} while (wait);
		if (!broken)
			switch (w->kind) {
			case WORK_COPY:
				if (how != COPIES_NOTHING || w->size < 4096)
					memcpy((void *)w->dst, (void *)w->src, w->size);
				break;
			case WORK_SET: memset((void *)w->dst, w->value, w->size); break;
			case WORK_KERNEL: run_kernel(w, how); break;
			}
		if (w->kind == WORK_EVENT) {
			pthread_mutex_lock(&w->event->mu);
			w->event->done = w->number;
			clock_gettime(CLOCK_MONOTONIC, &w->event->at);
			pthread_mutex_unlock(&w->event->mu);
		}
		free(w);
		pthread_mutex_lock(&s->mu);
		if (--s->pending == 0)
			pthread_cond_broadcast(&s->idle);
		pthread_mutex_unlock(&s->mu);
		if (end)
			return 0;
	}
}

static int submit(stream *s, work w) {
	if (!s)
		return INVALID_HANDLE; // the legacy stream is never used
	work *one = malloc(sizeof *one);
	*one = w;
	one->next = 0;
	pthread_mutex_lock(&s->mu);
	*s->last = one;
	s->last = &one->next;
	s->pending++;
	pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->mu);
	return SUCCESS;
}

EXPORT int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) {
	WORK(cuStreamCreateWithPriority);
	if (flags != 1 || priority > 0 || priority < -5)
		return INVALID_VALUE;
	stream *s = calloc(1, sizeof *s);
	pthread_mutex_init(&s->mu, 0);
	pthread_cond_init(&s->more, 0);
	pthread_cond_init(&s->idle, 0);
	s->last = &s->first;
	s->context = current;
	if (pthread_create(&s->thread, 0, run_stream, s)) {
		free(s);
		return OUT_OF_MEMORY;
	}
	add_object(STREAMS, s);
	*out = s;
	return SUCCESS;
}

static void destroy_stream(stream *s) {
	submit(s, (work){.kind = WORK_END});
	pthread_join(s->thread, 0);
	free(s);
}

EXPORT int cuStreamDestroy_v2(stream *s) {
	WORK(cuStreamDestroy_v2);
	int code = take_object(STREAMS, s);
	if (!code)
		destroy_stream(s);
	return code;
}

EXPORT int cuStreamSynchronize(stream *s) {
	WORK(cuStreamSynchronize);
	pthread_mutex_lock(&s->mu);
	while (s->pending)
		pthread_cond_wait(&s->idle, &s->mu);
	pthread_mutex_unlock(&s->mu);
	return current->broken;
}

EXPORT int cuEventCreate(event **out, unsigned flags) {
	WORK(cuEventCreate);
	(void)flags;
	event *e = calloc(1, sizeof *e);
	pthread_mutex_init(&e->mu, 0);
	add_object(EVENTS, e);
	*out = e;
	return SUCCESS;
}

static int finished(event *e) {
	pthread_mutex_lock(&e->mu);
	int done = e->done >= e->recorded;
	pthread_mutex_unlock(&e->mu);
	return done;
}

// destroy_event waits for the stream that will record it.
static void destroy_event(event *e) {
	while (!finished(e))
		usleep(20);
	free(e);
}

EXPORT int cuEventDestroy_v2(event *e) {
	WORK(cuEventDestroy_v2);
	int code = take_object(EVENTS, e);
	if (!code)
		destroy_event(e);
	return code;
}

EXPORT int cuEventRecord(event *e, stream *s) {
	WORK(cuEventRecord);
	pthread_mutex_lock(&e->mu);
	long number = ++e->recorded;
	pthread_mutex_unlock(&e->mu);
	return submit(s, (work){.kind = WORK_EVENT, .event = e, .number = number});
}

EXPORT int cuEventQuery(event *e) {
	WORK(cuEventQuery);
	return finished(e) ? SUCCESS : NOT_READY;
}

EXPORT int cuEventSynchronize(event *e) {
	WORK(cuEventSynchronize);
	while (!finished(e))
		usleep(20);
	return current->broken;
}

EXPORT int cuEventElapsedTime(float *out, event *from, event *to) {
	WORK(cuEventElapsedTime);
	if (!from->done || !to->done)
		return INVALID_HANDLE;
	*out = (to->at.tv_sec - from->at.tv_sec) * 1e3f + (to->at.tv_nsec - from->at.tv_nsec) / 1e6f;
	return SUCCESS;
}

// known reports whether an address range is memory of the given sides.
static int known(uintptr_t p, size_t size, int host) {
	struct span s;
	static const int device[] = {MEMORY, IPC, MAPPINGS}, pinned[] = {HOST, REGISTERED};
	for (int i = 0; i < (host ? 2 : 3); i++)
		if (!find_span(p, host ? pinned[i] : device[i], &s) && p + size <= s.base + s.size)
			return 1;
	return 0;
}

static int copy(uintptr_t dst, uintptr_t src, size_t size, int to_host, int from_host, stream *s) {
	if (!known(dst, size, to_host) || !known(src, size, from_host))
		return INVALID_VALUE;
	return submit(s, (work){.kind = WORK_COPY, .dst = dst, .src = src, .size = size});
}

EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t dst, uintptr_t src, size_t size, stream *s) { WORK(cuMemcpyDtoDAsync_v2); return copy(dst, src, size, 0, 0, s); }
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t dst, uintptr_t src, size_t size, stream *s) { WORK(cuMemcpyHtoDAsync_v2); return copy(dst, src, size, 0, 1, s); }
EXPORT int cuMemcpyDtoHAsync_v2(uintptr_t dst, uintptr_t src, size_t size, stream *s) { WORK(cuMemcpyDtoHAsync_v2); return copy(dst, src, size, 1, 0, s); }

EXPORT int cuMemsetD8Async(uintptr_t dst, unsigned char value, size_t size, stream *s) {
	WORK(cuMemsetD8Async);
	if (!known(dst, size, 0))
		return INVALID_VALUE;
	return submit(s, (work){.kind = WORK_SET, .dst = dst, .value = value, .size = size});
}

typedef struct { int order; location src, dst; unsigned flags; } copy_attributes;

static int batch(uintptr_t *dst, uintptr_t *src, size_t *sizes, size_t n, copy_attributes *attrs, size_t *indices, size_t attr_count, stream *s) {
	if (!s || attr_count != 1 || attrs->order != 1 || indices[0] != 0)
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		uintptr_t from = wrong == ONE_SOURCE ? src[0] : src[i];
		// With unified addresses a piece may be pinned memory of the host.
		int code = copy(dst[i], from, sizes[i], known(dst[i], sizes[i], 1), known(from, sizes[i], 1), s);
		if (code)
			return code;
	}
	return SUCCESS;
}

EXPORT int cuMemcpyBatchAsync_v2(uintptr_t *dst, uintptr_t *src, size_t *sizes, size_t n, copy_attributes *attrs, size_t *indices, size_t attr_count, stream *s) {
	WORK(cuMemcpyBatchAsync_v2);
	return batch(dst, src, sizes, n, attrs, indices, attr_count, s);
}

EXPORT int cuMemcpyBatchAsync(uintptr_t *dst, uintptr_t *src, size_t *sizes, size_t n, copy_attributes *attrs, size_t *indices, size_t attr_count, size_t *failed, stream *s) {
	WORK(cuMemcpyBatchAsync);
	*failed = n;
	return batch(dst, src, sizes, n, attrs, indices, attr_count, s);
}

// ---- kernels, by entry name ----

typedef struct { char text[1]; } module;
static const struct function { const char *name; int how; } functions[] = {
	{"kv_copy", KV_COPY}, {"kv_gather", KV_GATHER}, {"kv_scatter", KV_SCATTER}, {"kv_sum", KV_SUM}, {"kv_sum_dst", KV_SUM_DST},
};

EXPORT int cuModuleLoadData(module **out, const char *image) {
	WORK(cuModuleLoadData);
	if (!strstr(image, ".version") || !strstr(image, ".target sm_80"))
		return INVALID_IMAGE;
	module *m = malloc(strlen(image) + 1);
	strcpy(m->text, image);
	add_object(MODULES, m);
	*out = m;
	return SUCCESS;
}

EXPORT int cuModuleUnload(module *m) {
	WORK(cuModuleUnload);
	int code = take_object(MODULES, m);
	if (!code)
		free(m);
	return code;
}

EXPORT int cuModuleGetFunction(const struct function **out, module *m, const char *name) {
	WORK(cuModuleGetFunction);
	char entry[128];
	snprintf(entry, sizeof entry, ".entry %s(", name);
	if (!strstr(m->text, entry))
		return NOT_FOUND;
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(functions[i].name, name))
			return *out = &functions[i], SUCCESS;
	return NOT_FOUND;
}

EXPORT int cuLaunchKernel(const struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **params, void **extra) {
	WORK(cuLaunchKernel);
	if (!gx || gy != 1 || gz != 1 || !bx || bx > 1024 || bx % 32 || by != 1 || bz != 1 || shared || extra || !params)
		return INVALID_VALUE;
	work w = {.kind = WORK_KERNEL, .how = f->how, .grid = gx, .block = bx};
	for (int i = 0; i < 7; i++)
		w.args[i] = *(uint64_t *)params[i];
	return submit(s, w);
}

// destroy_all destroys everything in a context, when the context ends.
static void destroy_all(struct context *c) {
	for (int kind = EVENTS + 1; kind-- > STREAMS;) // events wait for their streams
		for (;;) {
			void *p = 0;
			pthread_mutex_lock(&mu);
			for (struct object *o = objects; o && !p; o = o->next)
				if (o->context == c && o->kind == kind)
					p = o->p;
			pthread_mutex_unlock(&mu);
			if (!p)
				break;
			take_object(kind, p);
			kind == EVENTS ? destroy_event(p) : destroy_stream(p);
		}
	for (;;) {
		void *p = 0;
		pthread_mutex_lock(&mu);
		for (struct object *o = objects; o && !p; o = o->next)
			if (o->context == c && o->kind == MODULES)
				p = o->p;
		pthread_mutex_unlock(&mu);
		if (!p)
			break;
		take_object(MODULES, p);
		free(p);
	}
	for (;;) {
		struct span s = {0}, other;
		pthread_mutex_lock(&mu);
		for (struct span *at = spans; at && !s.base; at = at->next)
			if (at->context == c && (at->kind == MEMORY || at->kind == HOST || at->kind == REGISTERED || at->kind == IPC))
				s = *at;
		pthread_mutex_unlock(&mu);
		if (!s.base)
			break;
		take_span(s.base, s.kind, &s);
		if (s.kind != REGISTERED && (s.kind != IPC || find_span(s.base, IPC, &other)))
			munmap((void *)s.base, s.size);
		if (s.kind == MEMORY)
			close(s.fd);
	}
}

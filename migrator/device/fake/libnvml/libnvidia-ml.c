// libnvidia-ml.c is NVML without a GPU, for tests: the real cgo code runs against
// it on any machine. It has the functions that package nvml uses, and those of
// package fake, by which any call can be made to fail.
//
// Environment, read by each nvmlInit_v2:
//   FAKE_NVML_GPUS    number of GPUs (default 2), at 0000:10:00.0, 0000:20:00.0, …
//   FAKE_NVML_LINKS   "switch": 18 NVLinks of each GPU into switches; "direct": 4
//                     between GPUs 0 and 1, 2 and 3, …; default none
//   FAKE_NVML_P2P     "no": the driver refuses P2P
//   FAKE_NVML_MIG     index of a GPU that is divided
//   FAKE_NVML_SICK    index of a GPU with uncorrected errors and rows to remap, hot
//   FAKE_NVML_LOST    index of a GPU that has fallen off the bus
//   FAKE_NVML_XID     "gpu:xid": a pending event
//   FAKE_NVML_FAIL    "call:nth:code", separated by commas
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_data;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

#define MAX_RULES 64
static struct rule { char call[64]; long left; int code; } rules[MAX_RULES];
static int rule_count;
#define MAX_CALLS 128
static struct { const char *name; long n; } calls[MAX_CALLS];

enum { INITS, EVENT_SETS, KINDS };
static const char *const kinds[KINDS] = {"inits", "event sets"};
static long live[KINDS];

#define MAX_GPUS 16
static struct gpu { int index; } gpus[MAX_GPUS];
static int count, mig, sick, lost, refused, event_gpu, event_xid, event_waits;
static char links[16];

// ---- control, as package fake has it ----

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

EXPORT int fake_fail(const char *call, long nth, long code) {
	pthread_mutex_lock(&mu);
	fail_locked(call, nth, (int)code);
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_clear(const char *unused, long unused2, long unused3) {
	pthread_mutex_lock(&mu);
	rule_count = 0;
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_delay(const char *unused, long unused2, long unused3) { return 0; }

// fake_xid makes an Xid occur on a GPU: 1000·gpu + xid.
EXPORT int fake_xid(const char *unused, long what, long unused3) {
	pthread_mutex_lock(&mu);
	event_gpu = (int)(what / 1000);
	event_xid = (int)(what % 1000);
	event_waits = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_sick and fake_lost set FAKE_NVML_SICK and FAKE_NVML_LOST; -1 means none.
EXPORT int fake_sick(const char *unused, long gpu, long unused3) {
	pthread_mutex_lock(&mu);
	sick = (int)gpu;
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_lost(const char *unused, long gpu, long unused3) {
	pthread_mutex_lock(&mu);
	lost = (int)gpu;
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_calls(const char *call, long unused2, long unused3) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_CALLS && calls[i].name; i++)
		if (!strcmp(calls[i].name, call))
			n = calls[i].n;
	pthread_mutex_unlock(&mu);
	return (int)n;
}

EXPORT int fake_live(const char *kind, long unused2, long unused3) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < KINDS; i++)
		if (!*kind || !strcmp(kind, kinds[i]))
			n += live[i];
	pthread_mutex_unlock(&mu);
	return (int)n;
}

// enter_locked counts a call, and returns the code with which it fails.
static int enter_locked(const char *call) {
	int i = 0, code = SUCCESS;
	while (i < MAX_CALLS - 1 && calls[i].name && strcmp(calls[i].name, call))
		i++;
	calls[i].name = call;
	calls[i].n++;
	for (i = 0; i < rule_count; i++)
		if ((!strcmp(rules[i].call, call) || !strcmp(rules[i].call, "*")) && rules[i].left > 0 && --rules[i].left == 0)
			code = rules[i].code;
	return code;
}

static int enter(const char *call) {
	pthread_mutex_lock(&mu);
	int code = enter_locked(call);
	if (code == SUCCESS && live[INITS] == 0)
		code = UNINITIALIZED;
	pthread_mutex_unlock(&mu);
	return code;
}

static int of(void *device, const char *call) {
	int code = enter(call);
	struct gpu *g = device;
	if (code == SUCCESS && (g < gpus || g >= gpus + count))
		code = INVALID_ARGUMENT;
	if (code == SUCCESS && g->index == lost)
		code = GPU_IS_LOST;
	return code;
}

#define ENTER() do { int code_ = enter(__func__); if (code_ != SUCCESS) return code_; } while (0)
#define OF(device) do { int code_ = of(device, __func__); if (code_ != SUCCESS) return code_; } while (0)
#define INDEX(device) (((struct gpu *)(device))->index)

// ---- the library ----

static int number(const char *name, int otherwise) {
	const char *env = getenv(name);
	return env && *env ? atoi(env) : otherwise;
}

static void environment(void) {
	const char *env = getenv("FAKE_NVML_LINKS"), *p2p = getenv("FAKE_NVML_P2P"), *xid = getenv("FAKE_NVML_XID"), *fail = getenv("FAKE_NVML_FAIL");
	char copy[4096], *save = 0;
	count = number("FAKE_NVML_GPUS", 2);
	if (count < 0 || count > MAX_GPUS)
		count = MAX_GPUS;
	for (int i = 0; i < count; i++)
		gpus[i].index = i;
	mig = number("FAKE_NVML_MIG", -1);
	sick = number("FAKE_NVML_SICK", -1);
	lost = number("FAKE_NVML_LOST", -1);
	refused = p2p && !strcmp(p2p, "no");
	snprintf(links, sizeof links, "%s", env ? env : "");
	event_xid = 0;
	event_waits = xid && sscanf(xid, "%d:%d", &event_gpu, &event_xid) == 2;
	snprintf(copy, sizeof copy, "%s", fail ? fail : "");
	for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(0, ",", &save)) {
		char name[64];
		long nth;
		int code;
		if (sscanf(one, "%63[^:]:%ld:%d", name, &nth, &code) == 3)
			fail_locked(name, nth, code);
	}
}

EXPORT int nvmlInit_v2(void) {
	pthread_mutex_lock(&mu);
	if (live[INITS] == 0)
		environment();
	int code = enter_locked(__func__);
	if (code == SUCCESS)
		live[INITS]++;
	pthread_mutex_unlock(&mu);
	return code;
}

EXPORT int nvmlShutdown(void) {
	ENTER();
	pthread_mutex_lock(&mu);
	if (--live[INITS] == 0)
		live[EVENT_SETS] = 0; // they end with it
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

static int text(char *to, unsigned size, const char *from) { return snprintf(to, size, "%s", from) < (int)size ? SUCCESS : INSUFFICIENT_SIZE; }

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
	ENTER();
	return text(version, size, "999.1");
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n) {
	ENTER();
	*n = (unsigned)count;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
	ENTER();
	if (index >= (unsigned)count)
		return INVALID_ARGUMENT;
	*device = gpus + index;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
	OF(device);
	char s[64];
	snprintf(s, sizeof s, "GPU-00000000-0000-0000-0000-%012d", INDEX(device));
	return text(uuid, size, s);
}

EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned size) {
	OF(device);
	return text(name, size, "Fake GPU");
}

static void address(pci_info *p, unsigned bus) {
	memset(p, 0, sizeof *p);
	p->bus = bus;
	snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", bus);
	snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", bus);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, pci_info *p) {
	OF(device);
	address(p, 0x10 * (unsigned)(INDEX(device) + 1));
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, memory_info *m) {
	OF(device);
	*m = (memory_info){.total = 80ull << 30, .free = 60ull << 30, .used = 20ull << 30};
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits) {
	OF(device);
	*bits = 5120;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) {
	OF(device);
	*mhz = type == 2 ? 2600 : 1980;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNumaNodeId(void *device, unsigned *node) {
	OF(device);
	*node = (unsigned)INDEX(device) / 4;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *gen) {
	OF(device);
	*gen = 1; // idle
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *gen) {
	OF(device);
	*gen = 5;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width) {
	OF(device);
	*width = 16;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width) {
	OF(device);
	*width = 16;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
	OF(device);
	*now = *pending = INDEX(device) == mig;
	return SUCCESS;
}

static unsigned link_count(void) { return !strcmp(links, "switch") ? 18 : !strcmp(links, "direct") ? 4 : 0; }

EXPORT int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
	OF(device);
	if (link_count() == 0)
		return NOT_SUPPORTED;
	if (link >= link_count())
		return INVALID_ARGUMENT;
	*active = INDEX(device) != sick || link != 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *version) {
	OF(device);
	*version = link_count() == 18 ? 6 : 4; // NVLink 4 and 3
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) {
	OF(device);
	*type = link_count() == 18 ? 2 : 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *p) {
	OF(device);
	address(p, link_count() == 18 ? 0xa0 + link % 4 : 0x10 * (unsigned)((INDEX(device) ^ 1) + 1));
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *n) {
	OF(device);
	*n = INDEX(device) == sick ? 7 : 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
	OF(device);
	*corrected = 0;
	*uncorrected = *pending = INDEX(device) == sick;
	*failed = 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
	OF(device);
	*reasons = INDEX(device) == sick ? 0x1 | 0x40 : 0x1; // idle; hot
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level) {
	OF(a);
	*level = INDEX(a) / 4 == INDEX(b) / 4 ? 40 : 50; // one NUMA node, or two
	return SUCCESS;
}

EXPORT int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status) {
	OF(a);
	*status = refused || (what == 2 && (link_count() == 0 || (link_count() == 4 && (INDEX(a) ^ 1) != INDEX(b)))) ? 5 : 0;
	return SUCCESS;
}

EXPORT int nvmlEventSetCreate(void **set) {
	ENTER();
	*set = malloc(1);
	pthread_mutex_lock(&mu);
	live[EVENT_SETS]++;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
	OF(device);
	return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, event_data *data, unsigned milliseconds) {
	ENTER();
	pthread_mutex_lock(&mu);
	int there = event_waits;
	event_waits = 0;
	pthread_mutex_unlock(&mu);
	if (!there) {
		usleep(milliseconds * 1000);
		return TIMEOUT;
	}
	*data = (event_data){.device = gpus + event_gpu, .type = 8, .data = (unsigned)event_xid, .gpu_instance = ~0u, .compute_instance = ~0u};
	return SUCCESS;
}

EXPORT int nvmlEventSetFree(void *set) {
	ENTER();
	free(set);
	pthread_mutex_lock(&mu);
	live[EVENT_SETS]--;
	pthread_mutex_unlock(&mu);
	return SUCCESS;
}

// shim.h declares the used part of NVML, so that building needs no headers, and starting needs no driver.
#ifndef CASCADE_NVML_SHIM_H
#define CASCADE_NVML_SHIM_H

#include <stdint.h>

// CN_CALLS lists every function: its name, its parameters, and the arguments that cn_call passes, as in nvml.h. Handles
// are pointers. v are the caller's eight words: results begin in the first one, arguments after the results. buf is memory
// of the caller for texts and nvmlPciInfo_t; nvmlMemory_t and nvmlEventData_t are words. The order is that of calls.go.
#define CN_CALLS(X)                                                                                                       \
	X(nvmlInit_v2, (void), ())                                                                                             \
	X(nvmlShutdown, (void), ())                                                                                            \
	X(nvmlDeviceGetCount_v2, (unsigned *), (NUMBER(0)))                                                                    \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **), ((unsigned)v[1], (void **)&v[0]))                                \
	X(nvmlDeviceGetUUID, (void *, char *, unsigned), (HANDLE(0), buf, (unsigned)v[1]))                                     \
	X(nvmlDeviceGetName, (void *, char *, unsigned), (HANDLE(0), buf, (unsigned)v[1]))                                     \
	X(nvmlDeviceGetPciInfo_v3, (void *, void *), (HANDLE(0), buf))                                                         \
	X(nvmlDeviceGetMemoryInfo, (void *, uint64_t *), (HANDLE(3), v))                                                       \
	X(nvmlSystemGetDriverVersion, (char *, unsigned), (buf, (unsigned)v[0]))                                               \
	X(nvmlDeviceGetMemoryBusWidth, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                           \
	X(nvmlDeviceGetMaxClockInfo, (void *, int, unsigned *), (HANDLE(1), (int)v[2], NUMBER(0)))                             \
	X(nvmlDeviceGetNumaNodeId, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                               \
	X(nvmlDeviceGetCurrPcieLinkGeneration, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                   \
	X(nvmlDeviceGetMaxPcieLinkGeneration, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                    \
	X(nvmlDeviceGetCurrPcieLinkWidth, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                        \
	X(nvmlDeviceGetMaxPcieLinkWidth, (void *, unsigned *), (HANDLE(1), NUMBER(0)))                                         \
	X(nvmlDeviceGetMigMode, (void *, unsigned *, unsigned *), (HANDLE(2), NUMBER(0), NUMBER(1)))                           \
	X(nvmlDeviceGetNvLinkState, (void *, unsigned, unsigned *), (HANDLE(1), (unsigned)v[2], NUMBER(0)))                    \
	X(nvmlDeviceGetNvLinkVersion, (void *, unsigned, unsigned *), (HANDLE(1), (unsigned)v[2], NUMBER(0)))                  \
	X(nvmlDeviceGetNvLinkRemoteDeviceType, (void *, unsigned, unsigned *), (HANDLE(1), (unsigned)v[2], NUMBER(0)))         \
	X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (void *, unsigned, void *), (HANDLE(0), (unsigned)v[1], buf))                   \
	X(nvmlDeviceGetTotalEccErrors, (void *, int, int, uint64_t *), (HANDLE(1), (int)v[2], (int)v[3], &v[0]))               \
	X(nvmlDeviceGetRemappedRows, (void *, unsigned *, unsigned *, unsigned *, unsigned *),                                 \
	  (HANDLE(4), NUMBER(0), NUMBER(1), NUMBER(2), NUMBER(3)))                                                             \
	X(nvmlDeviceGetCurrentClocksEventReasons, (void *, uint64_t *), (HANDLE(1), &v[0]))                                    \
	X(nvmlDeviceGetTopologyCommonAncestor, (void *, void *, unsigned *), (HANDLE(1), HANDLE(2), NUMBER(0)))                \
	X(nvmlDeviceGetP2PStatus, (void *, void *, int, unsigned *), (HANDLE(1), HANDLE(2), (int)v[3], NUMBER(0)))             \
	X(nvmlEventSetCreate, (void **), ((void **)&v[0]))                                                                     \
	X(nvmlDeviceRegisterEvents, (void *, uint64_t, void *), (HANDLE(0), v[1], HANDLE(2)))                                  \
	X(nvmlEventSetWait_v2, (void *, uint64_t *, unsigned), (HANDLE(4), v, (unsigned)v[5]))                                 \
	X(nvmlEventSetFree, (void *), (HANDLE(0)))

enum {
#define X(name, params, args) CN_##name,
	CN_CALLS(X)
#undef X
	CN_COUNT
};

// cn_name returns the symbol of function op, 0 after the last one.
const char *cn_name(int op);

// cn_call calls function op of table f, and returns its nvmlReturn_t.
int cn_call(void *const *f, int op, uint64_t *v, void *buf);

#endif

// shim.h declares the functions by which Go calls libibverbs.
#ifndef CASCADE_VERBS_SHIM_H
#define CASCADE_VERBS_SHIM_H

#include "abi.h"

// CV_CALLS lists every call: its name, and the version of its symbol, 0 if the call is in
// the context's table instead. The order is that of calls.go.
#define CV_CALLS(X)                              \
	X(ibv_get_device_list, "IBVERBS_1.1")        \
	X(ibv_free_device_list, "IBVERBS_1.1")       \
	X(ibv_get_device_name, "IBVERBS_1.1")        \
	X(ibv_open_device, "IBVERBS_1.1")            \
	X(ibv_close_device, "IBVERBS_1.1")           \
	X(ibv_query_device, "IBVERBS_1.1")           \
	X(ibv_query_port, "IBVERBS_1.1")             \
	X(ibv_query_gid, "IBVERBS_1.1")              \
	X(_ibv_query_gid_ex, "IBVERBS_1.11")         \
	X(ibv_alloc_pd, "IBVERBS_1.1")               \
	X(ibv_dealloc_pd, "IBVERBS_1.1")             \
	X(ibv_reg_mr, "IBVERBS_1.1")                 \
	X(ibv_reg_dmabuf_mr, "IBVERBS_1.12")         \
	X(ibv_dereg_mr, "IBVERBS_1.1")               \
	X(ibv_create_comp_channel, "IBVERBS_1.0")    \
	X(ibv_destroy_comp_channel, "IBVERBS_1.0")   \
	X(ibv_create_cq, "IBVERBS_1.1")              \
	X(ibv_destroy_cq, "IBVERBS_1.1")             \
	X(ibv_get_cq_event, "IBVERBS_1.1")           \
	X(ibv_ack_cq_events, "IBVERBS_1.1")          \
	X(ibv_create_qp, "IBVERBS_1.1")              \
	X(ibv_modify_qp, "IBVERBS_1.1")              \
	X(ibv_destroy_qp, "IBVERBS_1.1")             \
	X(ibv_get_async_event, "IBVERBS_1.1")        \
	X(ibv_ack_async_event, "IBVERBS_1.1")        \
	X(ibv_wc_status_str, "IBVERBS_1.1")          \
	X(ibv_event_type_str, "IBVERBS_1.1")         \
	X(ibv_post_send, 0)                          \
	X(ibv_poll_cq, 0)                            \
	X(ibv_req_notify_cq, 0)

enum {
#define X(name, version) CV_##name,
	CV_CALLS(X)
#undef X
	CV_COUNT
};

// cv_work is one work request. With CV_JOINED it adds local memory to the request before
// it, and nothing else.
typedef struct {
	uint64_t id, local, remote;
	uint32_t length, lkey, rkey, flags;
} cv_work;

// CV_BATCH is the largest number of work requests that one call posts.
#define CV_BATCH 128

enum { CV_JOINED = 1 << 31 };

// cv_path is the path from a queue pair to its peer.
typedef struct {
	uint8_t gid[16];
	uint32_t pair, their_psn, own_psn;
	uint16_t lid;
	uint8_t global, gid_index, port, mtu, reads, their_reads, timeout, retries, hops, traffic_class, service_level;
} cv_path;

// cv_name and cv_version return the name and version of call op, 0 after the last one.
const char *cv_name(int op);
const char *cv_version(int op);

// cv_call makes call op through table f. v are the caller's words, which hold the
// arguments and, from the first word on, the results; buf is memory of the caller. It
// returns 0 or the errno.
int cv_call(void *const *f, int op, uint64_t *v, void *buf);

#endif

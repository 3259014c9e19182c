// abi.h declares the used part of libibverbs, so that building needs no headers. Names
// are the library's with cv_ for ibv_. A test compares the layouts with
// <infiniband/verbs.h> where that is installed.
#ifndef CASCADE_VERBS_ABI_H
#define CASCADE_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct { uint64_t addr; uint32_t length, lkey; } cv_sge;

typedef struct cv_send_wr {
	uint64_t wr_id;
	struct cv_send_wr *next;
	cv_sge *sg_list;
	int num_sge, opcode;
	unsigned send_flags;
	uint32_t imm_data;
	union {
		struct { uint64_t remote_addr; uint32_t rkey; } rdma;
		uint64_t atomic[4];
	} wr;
	uint64_t xrc;
	uint64_t bind[6];
} cv_send_wr;

typedef struct cv_recv_wr {
	uint64_t wr_id;
	struct cv_recv_wr *next;
	cv_sge *sg_list;
	int num_sge;
} cv_recv_wr;

typedef struct {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
	unsigned wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
} cv_wc;

// cv_context has the calls that are inline functions of the header; they exist nowhere
// else.
typedef struct cv_context {
	void *device;
	void *before_poll_cq[11];
	int (*poll_cq)(void *cq, int n, cv_wc *wc);
	int (*req_notify_cq)(void *cq, int solicited_only);
	void *before_post_send[12];
	int (*post_send)(void *qp, cv_send_wr *wr, cv_send_wr **bad);
	int (*post_recv)(void *qp, cv_recv_wr *wr, cv_recv_wr **bad);
	void *after_post_recv[5];
	int cmd_fd, async_fd, num_comp_vectors;
} cv_context;

// The library makes these structures; only their first fields are read.
typedef struct { cv_context *context; uint32_t handle; } cv_pd;
typedef struct { cv_context *context; cv_pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; } cv_mr;
typedef struct { cv_context *context; int fd, refcnt; } cv_comp_channel;
typedef struct { cv_context *context; cv_comp_channel *channel; void *cq_context; uint32_t handle; int cqe; } cv_cq;
typedef struct { cv_context *context; void *qp_context; cv_pd *pd; cv_cq *send_cq, *recv_cq; void *srq; uint32_t handle, qp_num; } cv_qp;

typedef struct { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data; } cv_qp_cap;

typedef struct {
	void *qp_context;
	cv_cq *send_cq, *recv_cq;
	void *srq;
	cv_qp_cap cap;
	int qp_type, sq_sig_all;
} cv_qp_init_attr;

typedef union { uint8_t raw[16]; uint64_t words[2]; } cv_gid;

typedef struct {
	cv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
} cv_global_route;

typedef struct {
	cv_global_route grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} cv_ah_attr;

typedef struct {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned qp_access_flags;
	cv_qp_cap cap;
	cv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
		alt_port_num, alt_timeout;
	uint32_t rate_limit;
} cv_qp_attr;

// cv_port_attr is what ibv_query_port of the library fills; the header's inline function
// adds fields after it.
typedef struct {
	int state, max_mtu, active_mtu, gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
	uint16_t port_cap_flags2;
} cv_port_attr;

typedef struct {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
		max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
		max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
} cv_device_attr;

typedef struct { cv_gid gid; uint32_t gid_index, port_num, gid_type, ndev_ifindex; } cv_gid_entry;

typedef struct { void *element; int event_type; } cv_async_event;

enum { CV_WR_WRITE = 0, CV_WR_SEND = 2, CV_WR_READ = 4 };
enum { CV_SIGNALED = 1 << 1 };
enum { CV_QPT_RC = 2 };
enum { CV_QPS_RESET, CV_QPS_INIT, CV_QPS_RTR, CV_QPS_RTS, CV_QPS_ERR = 6 };
enum {
	CV_QP_STATE = 1 << 0,
	CV_QP_ACCESS_FLAGS = 1 << 3,
	CV_QP_PKEY_INDEX = 1 << 4,
	CV_QP_PORT = 1 << 5,
	CV_QP_AV = 1 << 7,
	CV_QP_PATH_MTU = 1 << 8,
	CV_QP_TIMEOUT = 1 << 9,
	CV_QP_RETRY_CNT = 1 << 10,
	CV_QP_RNR_RETRY = 1 << 11,
	CV_QP_RQ_PSN = 1 << 12,
	CV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	CV_QP_MIN_RNR_TIMER = 1 << 15,
	CV_QP_SQ_PSN = 1 << 16,
	CV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	CV_QP_DEST_QPN = 1 << 20,
};

#endif

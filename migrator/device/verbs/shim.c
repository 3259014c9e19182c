#include <errno.h>
#include <string.h>

#include "shim.h"

static const char *const names[] = {
#define X(name, version) #name,
	CV_CALLS(X)
#undef X
};

static const char *const versions[] = {
#define X(name, version) version,
	CV_CALLS(X)
#undef X
};

const char *cv_name(int op) { return op >= 0 && op < CV_COUNT ? names[op] : 0; }

const char *cv_version(int op) { return op >= 0 && op < CV_COUNT ? versions[op] : 0; }

// status turns the result of a library function into an errno: some return it, some
// return −1 and set errno.
static int status(int r) {
	if (r >= 0)
		return r;
	return r == -1 && errno ? errno : r == -1 ? EIO : -r;
}

// made returns the status of a call that returns a pointer.
static int made(uint64_t *v, void *p) {
	v[0] = (uint64_t)(uintptr_t)p;
	return p ? 0 : errno ? errno : EIO;
}

static void *pointer(uint64_t word) { return (void *)(uintptr_t)word; }

// to_init, to_rtr and to_rts set the attributes of a queue pair's transitions. A peer
// that is present and not ready is retried forever (7): the caller has a deadline.
static int to_init(cv_qp_attr *a, const uint64_t *v) {
	*a = (cv_qp_attr){.qp_state = CV_QPS_INIT, .port_num = (uint8_t)v[2], .qp_access_flags = (unsigned)v[3]};
	return CV_QP_STATE | CV_QP_PKEY_INDEX | CV_QP_PORT | CV_QP_ACCESS_FLAGS;
}

static int to_rtr(cv_qp_attr *a, const cv_path *p) {
	*a = (cv_qp_attr){
		.qp_state = CV_QPS_RTR, .path_mtu = p->mtu, .dest_qp_num = p->pair, .rq_psn = p->their_psn, .max_dest_rd_atomic = p->their_reads, .min_rnr_timer = 12,
		.ah_attr = {.dlid = p->lid, .sl = p->service_level, .is_global = p->global, .port_num = p->port,
			.grh = {.sgid_index = p->gid_index, .hop_limit = p->hops, .traffic_class = p->traffic_class}},
	};
	memcpy(a->ah_attr.grh.dgid.raw, p->gid, sizeof p->gid);
	return CV_QP_STATE | CV_QP_AV | CV_QP_PATH_MTU | CV_QP_DEST_QPN | CV_QP_RQ_PSN | CV_QP_MAX_DEST_RD_ATOMIC | CV_QP_MIN_RNR_TIMER;
}

static int to_rts(cv_qp_attr *a, const cv_path *p) {
	*a = (cv_qp_attr){.qp_state = CV_QPS_RTS, .sq_psn = p->own_psn, .timeout = p->timeout, .retry_cnt = p->retries, .rnr_retry = 7, .max_rd_atomic = p->reads};
	return CV_QP_STATE | CV_QP_SQ_PSN | CV_QP_TIMEOUT | CV_QP_RETRY_CNT | CV_QP_RNR_RETRY | CV_QP_MAX_QP_RD_ATOMIC;
}

// post_send posts READs of v[1] entries; v[0] becomes the number of accepted requests.
static int post_send(cv_qp *qp, uint64_t *v, const cv_work *work) {
	cv_send_wr wr[CV_BATCH], *bad = 0;
	cv_sge sge[CV_BATCH];
	int n = (int)v[1], m = 0;
	if (n < 1 || n > CV_BATCH || work[0].flags & (uint32_t)CV_JOINED)
		return EINVAL;
	for (int i = 0; i < n; i++) {
		sge[i] = (cv_sge){work[i].local, work[i].length, work[i].lkey};
		if (work[i].flags & (uint32_t)CV_JOINED) {
			wr[m - 1].num_sge++;
			continue;
		}
		if (m > 0)
			wr[m - 1].next = &wr[m];
		wr[m] = (cv_send_wr){.wr_id = work[i].id, .sg_list = &sge[i], .num_sge = work[i].length > 0, .opcode = CV_WR_READ, .send_flags = work[i].flags,
			.wr.rdma = {work[i].remote, work[i].rkey}};
		m++;
	}
	int r = status(qp->context->post_send(qp, wr, &bad));
	v[0] = r && bad ? (uint64_t)(bad - wr) : r ? 0 : (uint64_t)m;
	return r;
}

#define F(name, params) ((params)f[CV_##name])

int cv_call(void *const *f, int op, uint64_t *v, void *buf) {
	errno = 0;
	switch (op) {
	case CV_ibv_get_device_list: {
		int n = 0;
		void *list = F(ibv_get_device_list, void *(*)(int *))(&n);
		v[1] = (uint64_t)(n > 0 ? n : 0);
		return made(v, list);
	}
	case CV_ibv_free_device_list:
		F(ibv_free_device_list, void (*)(void *))(pointer(v[0]));
		return 0;
	case CV_ibv_get_device_name: // of device v[2] of list v[1]
		return made(v, (void *)F(ibv_get_device_name, const char *(*)(void *))(((void **)pointer(v[1]))[v[2]]));
	case CV_ibv_open_device: {
		cv_context *c = F(ibv_open_device, cv_context *(*)(void *))(((void **)pointer(v[1]))[v[2]]);
		if (c)
			v[1] = (uint64_t)c->async_fd;
		return made(v, c);
	}
	case CV_ibv_close_device:
		return status(F(ibv_close_device, int (*)(void *))(pointer(v[0])));
	case CV_ibv_query_device: {
		cv_device_attr a = {0};
		int r = status(F(ibv_query_device, int (*)(void *, cv_device_attr *))(pointer(v[0]), &a));
		v[0] = (uint64_t)a.max_qp_wr, v[1] = (uint64_t)a.max_cqe, v[2] = (uint64_t)a.max_qp_rd_atom, v[3] = (uint64_t)a.max_qp_init_rd_atom;
		v[4] = a.phys_port_cnt, v[5] = a.max_mr_size, v[6] = (uint64_t)(a.max_sge_rd > 0 ? a.max_sge_rd : 1);
		return r;
	}
	case CV_ibv_query_port: {
		cv_port_attr a = {0};
		int r = status(F(ibv_query_port, int (*)(void *, uint8_t, cv_port_attr *))(pointer(v[0]), (uint8_t)v[1], &a));
		v[0] = (uint64_t)a.state, v[1] = (uint64_t)a.active_mtu, v[2] = (uint64_t)a.gid_tbl_len, v[3] = a.max_msg_sz, v[4] = a.lid, v[5] = a.link_layer, v[6] = a.flags;
		return r;
	}
	case CV_ibv_query_gid:
		return status(F(ibv_query_gid, int (*)(void *, uint8_t, int, void *))(pointer(v[0]), (uint8_t)v[1], (int)v[2], buf));
	case CV__ibv_query_gid_ex: {
		cv_gid_entry e = {0};
		int r = status(F(_ibv_query_gid_ex, int (*)(void *, uint32_t, uint32_t, cv_gid_entry *, uint32_t, size_t))(
			pointer(v[0]), (uint32_t)v[1], (uint32_t)v[2], &e, 0, sizeof e));
		memcpy(buf, e.gid.raw, sizeof e.gid.raw);
		v[0] = e.gid_type;
		return r;
	}
	case CV_ibv_alloc_pd:
		return made(v, F(ibv_alloc_pd, void *(*)(void *))(pointer(v[0])));
	case CV_ibv_dealloc_pd:
		return status(F(ibv_dealloc_pd, int (*)(void *))(pointer(v[0])));
	case CV_ibv_reg_mr: {
		cv_mr *m = F(ibv_reg_mr, cv_mr *(*)(void *, void *, size_t, int))(pointer(v[0]), pointer(v[1]), v[2], (int)v[3]);
		if (m)
			v[1] = m->lkey, v[2] = m->rkey;
		return made(v, m);
	}
	case CV_ibv_reg_dmabuf_mr: {
		cv_mr *m = F(ibv_reg_dmabuf_mr, cv_mr *(*)(void *, uint64_t, size_t, uint64_t, int, int))(pointer(v[0]), v[1], v[2], v[3], (int)v[4], (int)v[5]);
		if (m)
			v[1] = m->lkey, v[2] = m->rkey;
		return made(v, m);
	}
	case CV_ibv_dereg_mr:
		return status(F(ibv_dereg_mr, int (*)(void *))(pointer(v[0])));
	case CV_ibv_create_comp_channel: {
		cv_comp_channel *c = F(ibv_create_comp_channel, cv_comp_channel *(*)(void *))(pointer(v[0]));
		if (c)
			v[1] = (uint64_t)c->fd;
		return made(v, c);
	}
	case CV_ibv_destroy_comp_channel:
		return status(F(ibv_destroy_comp_channel, int (*)(void *))(pointer(v[0])));
	case CV_ibv_create_cq:
		return made(v, F(ibv_create_cq, void *(*)(void *, int, void *, void *, int))(pointer(v[0]), (int)v[1], 0, pointer(v[2]), 0));
	case CV_ibv_destroy_cq:
		return status(F(ibv_destroy_cq, int (*)(void *))(pointer(v[0])));
	case CV_ibv_get_cq_event: {
		void *cq, *context;
		return status(F(ibv_get_cq_event, int (*)(void *, void **, void **))(pointer(v[0]), &cq, &context));
	}
	case CV_ibv_ack_cq_events:
		F(ibv_ack_cq_events, void (*)(void *, unsigned))(pointer(v[0]), (unsigned)v[1]);
		return 0;
	case CV_ibv_create_qp: {
		cv_qp_init_attr a = {.send_cq = pointer(v[1]), .recv_cq = pointer(v[1]), .qp_type = CV_QPT_RC,
			.cap = {.max_send_wr = (uint32_t)v[2], .max_recv_wr = 1, .max_send_sge = (uint32_t)v[3], .max_recv_sge = 1}};
		cv_qp *q = F(ibv_create_qp, cv_qp *(*)(void *, cv_qp_init_attr *))(pointer(v[0]), &a);
		if (q)
			v[1] = q->qp_num;
		return made(v, q);
	}
	case CV_ibv_modify_qp: { // to state v[1]
		cv_qp_attr a = {.qp_state = CV_QPS_ERR};
		int mask = CV_QP_STATE;
		switch (v[1]) {
		case CV_QPS_INIT: mask = to_init(&a, v); break;
		case CV_QPS_RTR: mask = to_rtr(&a, buf); break;
		case CV_QPS_RTS: mask = to_rts(&a, buf); break;
		}
		return status(F(ibv_modify_qp, int (*)(void *, cv_qp_attr *, int))(pointer(v[0]), &a, mask));
	}
	case CV_ibv_destroy_qp:
		return status(F(ibv_destroy_qp, int (*)(void *))(pointer(v[0])));
	case CV_ibv_get_async_event: {
		cv_async_event e = {0};
		int r = status(F(ibv_get_async_event, int (*)(void *, cv_async_event *))(pointer(v[0]), &e));
		v[0] = (uint64_t)(uintptr_t)e.element, v[1] = (uint64_t)e.event_type;
		return r;
	}
	case CV_ibv_ack_async_event: {
		cv_async_event e = {pointer(v[0]), (int)v[1]};
		F(ibv_ack_async_event, void (*)(cv_async_event *))(&e);
		return 0;
	}
	case CV_ibv_wc_status_str:
		return made(v, (void *)F(ibv_wc_status_str, const char *(*)(int))((int)v[0]));
	case CV_ibv_event_type_str:
		return made(v, (void *)F(ibv_event_type_str, const char *(*)(int))((int)v[0]));
	case CV_ibv_post_send:
		return post_send(pointer(v[0]), v, buf);
	case CV_ibv_poll_cq: {
		cv_cq *cq = pointer(v[0]);
		int n = cq->context->poll_cq(cq, (int)v[1], buf);
		v[0] = (uint64_t)(n > 0 ? n : 0);
		return n < 0 ? status(n) : 0;
	}
	case CV_ibv_req_notify_cq: {
		cv_cq *cq = pointer(v[0]);
		return status(cq->context->req_notify_cq(cq, 0));
	}
	}
	return EINVAL;
}

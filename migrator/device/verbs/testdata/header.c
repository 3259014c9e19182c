// header.c compares abi.h with the library's own header, at compile time.
#include <infiniband/verbs.h>
#include "abi.h"

#define SIZE(a, b) _Static_assert(sizeof(a) == sizeof(b), "sizes of " #a)
#define FIELD(a, b, f) _Static_assert(offsetof(a, f) == offsetof(b, f) && sizeof(((a *)0)->f) == sizeof(((b *)0)->f), #a "." #f)
#define AT(a, f, b, g) _Static_assert(offsetof(a, f) == offsetof(b, g), #a "." #f)

SIZE(cv_sge, struct ibv_sge);
FIELD(cv_sge, struct ibv_sge, addr);
FIELD(cv_sge, struct ibv_sge, length);
FIELD(cv_sge, struct ibv_sge, lkey);

SIZE(cv_send_wr, struct ibv_send_wr);
FIELD(cv_send_wr, struct ibv_send_wr, wr_id);
FIELD(cv_send_wr, struct ibv_send_wr, next);
FIELD(cv_send_wr, struct ibv_send_wr, sg_list);
FIELD(cv_send_wr, struct ibv_send_wr, num_sge);
FIELD(cv_send_wr, struct ibv_send_wr, opcode);
FIELD(cv_send_wr, struct ibv_send_wr, send_flags);
FIELD(cv_send_wr, struct ibv_send_wr, imm_data);
FIELD(cv_send_wr, struct ibv_send_wr, wr.rdma.remote_addr);
FIELD(cv_send_wr, struct ibv_send_wr, wr.rdma.rkey);

SIZE(cv_recv_wr, struct ibv_recv_wr);
FIELD(cv_recv_wr, struct ibv_recv_wr, next);
FIELD(cv_recv_wr, struct ibv_recv_wr, sg_list);
FIELD(cv_recv_wr, struct ibv_recv_wr, num_sge);

SIZE(cv_wc, struct ibv_wc);
FIELD(cv_wc, struct ibv_wc, status);
FIELD(cv_wc, struct ibv_wc, opcode);
FIELD(cv_wc, struct ibv_wc, vendor_err);
FIELD(cv_wc, struct ibv_wc, byte_len);
FIELD(cv_wc, struct ibv_wc, qp_num);
FIELD(cv_wc, struct ibv_wc, wc_flags);
FIELD(cv_wc, struct ibv_wc, dlid_path_bits);

AT(cv_context, poll_cq, struct ibv_context, ops.poll_cq);
AT(cv_context, req_notify_cq, struct ibv_context, ops.req_notify_cq);
AT(cv_context, post_send, struct ibv_context, ops.post_send);
AT(cv_context, post_recv, struct ibv_context, ops.post_recv);
FIELD(cv_context, struct ibv_context, cmd_fd);
FIELD(cv_context, struct ibv_context, async_fd);

FIELD(cv_mr, struct ibv_mr, lkey);
FIELD(cv_mr, struct ibv_mr, rkey);
FIELD(cv_comp_channel, struct ibv_comp_channel, fd);
FIELD(cv_cq, struct ibv_cq, context);
FIELD(cv_cq, struct ibv_cq, channel);
FIELD(cv_qp, struct ibv_qp, context);
FIELD(cv_qp, struct ibv_qp, qp_num);

SIZE(cv_qp_init_attr, struct ibv_qp_init_attr);
FIELD(cv_qp_init_attr, struct ibv_qp_init_attr, send_cq);
FIELD(cv_qp_init_attr, struct ibv_qp_init_attr, recv_cq);
FIELD(cv_qp_init_attr, struct ibv_qp_init_attr, cap.max_send_wr);
FIELD(cv_qp_init_attr, struct ibv_qp_init_attr, cap.max_recv_sge);
FIELD(cv_qp_init_attr, struct ibv_qp_init_attr, qp_type);

SIZE(cv_qp_attr, struct ibv_qp_attr);
FIELD(cv_qp_attr, struct ibv_qp_attr, path_mtu);
FIELD(cv_qp_attr, struct ibv_qp_attr, rq_psn);
FIELD(cv_qp_attr, struct ibv_qp_attr, sq_psn);
FIELD(cv_qp_attr, struct ibv_qp_attr, dest_qp_num);
FIELD(cv_qp_attr, struct ibv_qp_attr, qp_access_flags);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.grh.dgid);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.grh.sgid_index);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.grh.hop_limit);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.grh.traffic_class);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.dlid);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.is_global);
FIELD(cv_qp_attr, struct ibv_qp_attr, ah_attr.port_num);
FIELD(cv_qp_attr, struct ibv_qp_attr, pkey_index);
FIELD(cv_qp_attr, struct ibv_qp_attr, max_rd_atomic);
FIELD(cv_qp_attr, struct ibv_qp_attr, max_dest_rd_atomic);
FIELD(cv_qp_attr, struct ibv_qp_attr, min_rnr_timer);
FIELD(cv_qp_attr, struct ibv_qp_attr, port_num);
FIELD(cv_qp_attr, struct ibv_qp_attr, timeout);
FIELD(cv_qp_attr, struct ibv_qp_attr, retry_cnt);
FIELD(cv_qp_attr, struct ibv_qp_attr, rnr_retry);

SIZE(cv_port_attr, struct ibv_port_attr);
FIELD(cv_port_attr, struct ibv_port_attr, state);
FIELD(cv_port_attr, struct ibv_port_attr, active_mtu);
FIELD(cv_port_attr, struct ibv_port_attr, gid_tbl_len);
FIELD(cv_port_attr, struct ibv_port_attr, max_msg_sz);
FIELD(cv_port_attr, struct ibv_port_attr, lid);
FIELD(cv_port_attr, struct ibv_port_attr, link_layer);

SIZE(cv_device_attr, struct ibv_device_attr);
FIELD(cv_device_attr, struct ibv_device_attr, max_mr_size);
FIELD(cv_device_attr, struct ibv_device_attr, max_qp_wr);
FIELD(cv_device_attr, struct ibv_device_attr, max_cqe);
FIELD(cv_device_attr, struct ibv_device_attr, max_qp_rd_atom);
FIELD(cv_device_attr, struct ibv_device_attr, max_qp_init_rd_atom);
FIELD(cv_device_attr, struct ibv_device_attr, phys_port_cnt);

SIZE(cv_gid_entry, struct ibv_gid_entry);
FIELD(cv_gid_entry, struct ibv_gid_entry, gid_type);
SIZE(cv_async_event, struct ibv_async_event);
FIELD(cv_async_event, struct ibv_async_event, event_type);

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a)
SAME(CV_WR_WRITE, IBV_WR_RDMA_WRITE);
SAME(CV_WR_SEND, IBV_WR_SEND);
SAME(CV_WR_READ, IBV_WR_RDMA_READ);
SAME(CV_SIGNALED, IBV_SEND_SIGNALED);
SAME(CV_QPT_RC, IBV_QPT_RC);
SAME(CV_QPS_INIT, IBV_QPS_INIT);
SAME(CV_QPS_RTR, IBV_QPS_RTR);
SAME(CV_QPS_RTS, IBV_QPS_RTS);
SAME(CV_QPS_ERR, IBV_QPS_ERR);
SAME(CV_QP_STATE, IBV_QP_STATE);
SAME(CV_QP_ACCESS_FLAGS, IBV_QP_ACCESS_FLAGS);
SAME(CV_QP_PKEY_INDEX, IBV_QP_PKEY_INDEX);
SAME(CV_QP_PORT, IBV_QP_PORT);
SAME(CV_QP_AV, IBV_QP_AV);
SAME(CV_QP_PATH_MTU, IBV_QP_PATH_MTU);
SAME(CV_QP_TIMEOUT, IBV_QP_TIMEOUT);
SAME(CV_QP_RETRY_CNT, IBV_QP_RETRY_CNT);
SAME(CV_QP_RNR_RETRY, IBV_QP_RNR_RETRY);
SAME(CV_QP_RQ_PSN, IBV_QP_RQ_PSN);
SAME(CV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC);
SAME(CV_QP_MIN_RNR_TIMER, IBV_QP_MIN_RNR_TIMER);
SAME(CV_QP_SQ_PSN, IBV_QP_SQ_PSN);
SAME(CV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME(CV_QP_DEST_QPN, IBV_QP_DEST_QPN);
// What Go has as plain numbers.
SAME(1, IBV_ACCESS_LOCAL_WRITE);
SAME(2, IBV_ACCESS_REMOTE_WRITE);
SAME(4, IBV_ACCESS_REMOTE_READ);
SAME(4, IBV_PORT_ACTIVE);
SAME(2, IBV_LINK_LAYER_ETHERNET);
SAME(2, IBV_GID_TYPE_ROCE_V2);
SAME(8, IBV_EVENT_DEVICE_FATAL);
SAME(9, IBV_EVENT_PORT_ACTIVE);
SAME(10, IBV_EVENT_PORT_ERR);
SAME(11, IBV_EVENT_LID_CHANGE);
SAME(12, IBV_EVENT_PKEY_CHANGE);
SAME(17, IBV_EVENT_CLIENT_REREGISTER);
SAME(18, IBV_EVENT_GID_CHANGE);
SAME(1, IBV_QPF_GRH_REQUIRED);
SAME(5, IBV_WC_WR_FLUSH_ERR);
SAME(10, IBV_WC_REM_ACCESS_ERR);
SAME(12, IBV_WC_RETRY_EXC_ERR);

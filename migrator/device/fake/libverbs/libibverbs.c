// libibverbs.c is libibverbs without an RDMA device, for tests: the real cgo code runs
// against it on any machine.
//
// Its devices, one by default (see fake_devices), reach the memory of their own process,
// and each other; with FAKE_VERBS_FABRIC, the path of a file, also that of the other
// processes with the same path. A thread executes requests after they were posted, so
// that a missing wait is detected. It holds the lock while it executes one, so that a
// pair that was moved to the error state does nothing more. Any call, and any request,
// can be made to fail, and every open handle is counted.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, idle = PTHREAD_COND_INITIALIZER;

// ---- control ----

#define MAX_RULES 64
static struct rule { char call[64]; long left; int code; } rules[MAX_RULES];
static int rule_count, port_down, held, sink, table;
#define MAX_CALLS 64
static struct { const char *name; long n; } calls[MAX_CALLS];

enum { CONTEXTS, DOMAINS, REGIONS, CHANNELS, QUEUES, PAIRS, LISTS, KINDS };
static const char *const kinds[KINDS] = {"contexts", "domains", "regions", "channels", "queues", "pairs", "lists"};
static long live[KINDS];

// fake_fail makes the nth call of a name from now on, counted from 1, fail. The name "*"
// means any call; "request" means an executed request, whose completion gets the code as
// its status.
EXPORT int fake_fail(const char *call, long nth, long code) {
	pthread_mutex_lock(&mu);
	if (rule_count < MAX_RULES) {
		snprintf(rules[rule_count].call, sizeof rules[0].call, "%s", call);
		rules[rule_count].left = nth;
		rules[rule_count++].code = (int)code;
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int fake_clear(const char *unused, long unused2, long unused3) {
	pthread_mutex_lock(&mu);
	rule_count = port_down = held = sink = table = 0;
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_hold holds requests back until it is called with 0; with 2 each is held back until
// a completion is waited for.
EXPORT int fake_hold(const char *unused, long hold, long unused3) {
	pthread_mutex_lock(&mu);
	held = (int)hold;
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_sink discards requests, which leaves only the cost of posting them.
EXPORT int fake_sink(const char *unused, long on, long unused3) {
	pthread_mutex_lock(&mu);
	sink = (int)on;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_forget resets the counts of open handles, after tests in which handles cannot be
// closed.
EXPORT int fake_forget(const char *unused, long unused2, long unused3) {
	pthread_mutex_lock(&mu);
	memset(live, 0, sizeof live);
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

// enter counts a call, and returns the code with which it fails.
static int enter_locked(const char *call) {
	int code = 0;
	for (int i = 0; i < MAX_CALLS; i++) {
		if (!calls[i].name)
			calls[i].name = call;
		if (!strcmp(calls[i].name, call)) {
			calls[i].n++;
			break;
		}
	}
	for (int i = 0; i < rule_count; i++)
		if ((!strcmp(rules[i].call, call) || !strcmp(rules[i].call, "*")) && rules[i].left > 0 && --rules[i].left == 0 && !code)
			code = rules[i].code;
	return code;
}

static int enter(const char *call) {
	pthread_mutex_lock(&mu);
	int code = enter_locked(call);
	pthread_mutex_unlock(&mu);
	errno = code;
	return code;
}

static void count(int kind, long by) {
	pthread_mutex_lock(&mu);
	live[kind] += by;
	pthread_mutex_unlock(&mu);
}

// ---- objects ----

struct context {
	cv_context c;
	struct context *next;
	struct device *device;
	int event; // set by fake_event, −1 for none
	int over;  // its device has failed
};
static struct context *contexts;

struct queue {
	cv_cq c;
	int armed, first, count, size; // armed is 2 when the queue was found empty since
	cv_wc *entries;
};

struct pair {
	cv_qp q;
	struct pair *next;
	int state, refused;
	cv_qp_attr rtr;
	uint32_t access, requests, pieces, posted;
	cv_recv_wr receives[64];
	cv_sge buffers[64];
	int receive_count;
};
static struct pair *pairs;
static uint32_t next_pair = 17;

struct region {
	cv_mr m;
	struct region *next;
	char *bytes;
	uint64_t base;
	int access;
	void *mapped;
};
static struct region *regions;
static uint32_t next_key = 1000;

#define MAX_PIECES 4
static struct request {
	struct request *next;
	struct pair *pair;
	int opcode;
	unsigned flags;
	uint64_t id, remote;
	uint32_t rkey;
	cv_sge sge[MAX_PIECES];
	int pieces;
	uint32_t length; // of all pieces
} *requests, **last_request = &requests, *current;
static int working;

#define MAX_DEVICES 128
static struct device { char name[16]; int failed, unplugged; } devices[MAX_DEVICES] = {{.name = "fake0"}};
static void *device_list[MAX_DEVICES + 1] = {&devices[0]};
static int device_count = 1;

static struct context *context_of(struct pair *p) { return (struct context *)p->q.context; }

// ---- other processes ----

// The fabric is a table of the pairs and regions of all its processes. Its lock is held
// while bytes are copied, so that after a pair was moved to the error state, or a region
// was deregistered, no other process reads it.
#define MAX_SHARED 1024
struct shared_pair { pid_t pid; uint32_t number, peer, access; int state; };
struct shared_region { pid_t pid; uint32_t key; int access; uint64_t bytes, base, length; };
static struct fabric {
	int made;
	pthread_mutex_t mu;
	uint32_t next_pair, next_key;
	struct shared_pair pairs[MAX_SHARED];
	struct shared_region regions[MAX_SHARED];
} *fabric;

__attribute__((constructor)) static void join_fabric(void) {
	const char *path = getenv("FAKE_VERBS_FABRIC");
	int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd < 0)
		return;
	flock(fd, LOCK_EX);
	if (ftruncate(fd, sizeof *fabric))
		abort();
	fabric = mmap(0, sizeof *fabric, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fabric == MAP_FAILED)
		abort();
	if (!fabric->made) {
		pthread_mutexattr_t a;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&fabric->mu, &a);
		fabric->next_pair = 17, fabric->next_key = 1000, fabric->made = 1;
	}
	flock(fd, LOCK_UN);
	close(fd);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); // the others read our memory
}

static void fabric_lock(void) {
	if (pthread_mutex_lock(&fabric->mu) == EOWNERDEAD)
		pthread_mutex_consistent(&fabric->mu);
}

static int gone(pid_t pid) { return !pid || (pid != getpid() && kill(pid, 0) && errno == ESRCH); }

// share_pair publishes a pair to the other processes; a state below 0 removes it.
static void share_pair(uint32_t number, uint32_t peer, uint32_t access, int state) {
	if (!fabric)
		return;
	fabric_lock();
	struct shared_pair *at = 0;
	for (int i = 0; i < MAX_SHARED && (!at || at->number != number); i++)
		if (fabric->pairs[i].number == number || (!at && state >= 0 && gone(fabric->pairs[i].pid)))
			at = &fabric->pairs[i];
	if (at)
		*at = state < 0 ? (struct shared_pair){0} : (struct shared_pair){getpid(), number, peer, access, state};
	pthread_mutex_unlock(&fabric->mu);
}

static void share_region(uint32_t key, int access, uint64_t bytes, uint64_t base, uint64_t length) {
	if (!fabric)
		return;
	fabric_lock();
	struct shared_region *at = 0;
	for (int i = 0; i < MAX_SHARED && (!at || at->key != key); i++)
		if (fabric->regions[i].key == key || (!at && length && gone(fabric->regions[i].pid)))
			at = &fabric->regions[i];
	if (at)
		*at = length ? (struct shared_region){getpid(), key, access, bytes, base, length} : (struct shared_region){0};
	pthread_mutex_unlock(&fabric->mu);
}

// ---- requests ----

static struct region *region_of(uint32_t key, int remote) {
	for (struct region *r = regions; r; r = r->next)
		if ((remote ? r->m.rkey : r->m.lkey) == key)
			return r;
	return 0;
}

// reach returns the memory that a key gives access to, or 0.
static char *reach(uint32_t key, int remote, int access, uint64_t address, uint64_t length) {
	struct region *r = region_of(key, remote);
	if (!r || (access && !(r->access & access)) || address < r->base || length > r->m.length || address - r->base > r->m.length - length)
		return 0;
	return r->bytes + (address - r->base);
}

static void complete(struct pair *p, uint64_t id, int status, int opcode, uint32_t bytes) {
	struct queue *q = (struct queue *)p->q.send_cq;
	if (q->count == q->size)
		abort(); // a queue that overruns is an error of its user
	q->entries[(q->first + q->count++) % q->size] =
		(cv_wc){.wr_id = id, .status = status, .opcode = opcode, .byte_len = bytes, .qp_num = p->q.qp_num, .vendor_err = status ? 129 : 0};
	if (q->armed && q->c.channel) {
		q->armed = 0;
		uint64_t one = 1;
		if (write(q->c.channel->fd, &one, sizeof one) < 0)
			abort();
	}
}

static struct pair *peer_of(struct pair *p) {
	for (struct pair *o = pairs; o; o = o->next)
		if (o->q.qp_num == p->rtr.dest_qp_num && (o->state == CV_QPS_RTR || o->state == CV_QPS_RTS) && o->rtr.dest_qp_num == p->q.qp_num)
			return o;
	return 0;
}

// carry_far executes a READ from another process's memory and returns its status.
static int carry_far(struct request *r, char **own) {
	struct iovec here[MAX_PIECES], there = {0};
	int status = 12;
	fabric_lock();
	for (struct shared_pair *o = fabric->pairs; o < fabric->pairs + MAX_SHARED; o++) {
		if (o->number != r->pair->rtr.dest_qp_num || o->peer != r->pair->q.qp_num || (o->state != CV_QPS_RTR && o->state != CV_QPS_RTS) || gone(o->pid))
			continue;
		status = 10;
		for (struct shared_region *m = fabric->regions; m < fabric->regions + MAX_SHARED; m++)
			if (m->pid == o->pid && m->key == r->rkey && m->access & o->access & 4 && r->remote >= m->base && r->length <= m->length && r->remote - m->base <= m->length - r->length)
				there = (struct iovec){(void *)(uintptr_t)(m->bytes + r->remote - m->base), r->length};
		if (!there.iov_base)
			break;
		for (int i = 0; i < r->pieces; i++)
			here[i] = (struct iovec){own[i], r->sge[i].length};
		status = process_vm_readv(o->pid, here, (unsigned long)r->pieces, &there, 1, 0) == (ssize_t)r->length ? 0 : 12;
	}
	pthread_mutex_unlock(&fabric->mu);
	return status;
}

// carry executes one request and returns its status.
static int carry(struct request *r) {
	struct pair *p = r->pair, *o = peer_of(p);
	int code = enter_locked("request");
	if (p->state != CV_QPS_RTS)
		return 5; // flushed
	if (code)
		return code;
	int far = !o && fabric && r->opcode == CV_WR_READ;
	if ((!o && !far) || context_of(p)->device->unplugged || (o && context_of(o)->device->unplugged))
		return 12; // no answer
	char *own[MAX_PIECES], *theirs;
	for (int i = 0; i < r->pieces; i++)
		if (!(own[i] = reach(r->sge[i].lkey, 0, r->opcode == CV_WR_READ ? 1 : 0, r->sge[i].addr, r->sge[i].length)))
			return 4; // local protection
	if (far)
		return carry_far(r, own);
	if (r->opcode == CV_WR_SEND) {
		if (!o->receive_count)
			return 13; // receiver not ready
		theirs = reach(o->buffers[0].lkey, 0, 1, o->buffers[0].addr, r->length);
		if (!theirs || r->length > o->buffers[0].length)
			return 11;
		for (int i = 0; i < r->pieces; theirs += r->sge[i++].length)
			memcpy(theirs, own[i], r->sge[i].length);
		complete(o, o->receives[0].wr_id, 0, 128, r->length);
		memmove(o->receives, o->receives + 1, sizeof o->receives - sizeof o->receives[0]);
		memmove(o->buffers, o->buffers + 1, sizeof o->buffers - sizeof o->buffers[0]);
		o->receive_count--;
		return 0;
	}
	int need = r->opcode == CV_WR_READ ? 4 : 2;
	theirs = reach(r->rkey, 1, need, r->remote, r->length);
	if (!theirs || !(o->access & (uint32_t)need)) {
		o->state = CV_QPS_ERR;
		return 10; // remote access
	}
	for (int i = 0; i < r->pieces; theirs += r->sge[i++].length)
		memcpy(r->opcode == CV_WR_READ ? own[i] : theirs, r->opcode == CV_WR_READ ? theirs : own[i], r->sge[i].length);
	return 0;
}

static int awaited(struct pair *p) { return ((struct queue *)p->q.send_cq)->armed == 2; }

static void *worker(void *unused) {
	(void)unused;
	pthread_mutex_lock(&mu);
	for (;;) {
		// What is flushed does not wait for a device.
		while (!requests || (held && requests->pair->state == CV_QPS_RTS && !(held == 2 && awaited(requests->pair))))
			pthread_cond_wait(&work, &mu);
		current = requests;
		if (!(requests = current->next))
			last_request = &requests;
		struct pair *p = current->pair;
		int status = carry(current);
		p->posted--;
		if (status)
			p->state = CV_QPS_ERR;
		if (status || current->flags & CV_SIGNALED)
			complete(p, current->id, status, current->opcode == CV_WR_READ ? 2 : current->opcode == CV_WR_SEND ? 0 : 1, current->length);
		free(current);
		current = 0;
		pthread_cond_broadcast(&idle);
	}
	return 0;
}

static int post_send(void *qp, cv_send_wr *wr, cv_send_wr **bad) {
	struct pair *p = qp;
	pthread_mutex_lock(&mu);
	int code = enter_locked("ibv_post_send");
	if (!working) {
		pthread_t t;
		working = 1;
		pthread_create(&t, 0, worker, 0);
		pthread_detach(t);
	}
	for (; wr; wr = wr->next) {
		if (!code && (p->state != CV_QPS_RTS && p->state != CV_QPS_ERR))
			code = EINVAL;
		if (!code && p->posted >= p->requests)
			code = ENOMEM;
		if (!code && (wr->num_sge > MAX_PIECES || (uint32_t)wr->num_sge > p->pieces))
			code = EINVAL;
		if (code) {
			*bad = wr;
			break;
		}
		if (sink)
			continue;
		struct request *r = calloc(1, sizeof *r);
		*r = (struct request){.pair = p, .opcode = wr->opcode, .flags = wr->send_flags, .id = wr->wr_id, .remote = wr->wr.rdma.remote_addr,
			.rkey = wr->wr.rdma.rkey, .pieces = wr->num_sge};
		for (int i = 0; i < wr->num_sge; i++)
			r->length += (r->sge[i] = wr->sg_list[i]).length;
		*last_request = r;
		last_request = &r->next;
		p->posted++;
	}
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return code;
}

static int post_recv(void *qp, cv_recv_wr *wr, cv_recv_wr **bad) {
	struct pair *p = qp;
	pthread_mutex_lock(&mu);
	int code = enter_locked("ibv_post_recv");
	for (; wr && !code; wr = wr->next) {
		if (p->receive_count == 64) {
			code = ENOMEM;
			break;
		}
		p->receives[p->receive_count] = *wr;
		p->buffers[p->receive_count++] = wr->sg_list[0];
	}
	if (code)
		*bad = wr;
	pthread_mutex_unlock(&mu);
	return code;
}

static int poll_cq(void *cq, int n, cv_wc *wc) {
	struct queue *q = cq;
	pthread_mutex_lock(&mu);
	int code = enter_locked("ibv_poll_cq"), i = 0;
	for (; !code && i < n && q->count; i++, q->count--) {
		wc[i] = q->entries[q->first];
		q->first = (q->first + 1) % q->size;
	}
	if (!code && !i && q->armed) {
		q->armed = 2;
		pthread_cond_signal(&work);
	}
	pthread_mutex_unlock(&mu);
	errno = code;
	return code ? -1 : i;
}

static int req_notify_cq(void *cq, int solicited) {
	(void)solicited;
	int code = enter("ibv_req_notify_cq");
	pthread_mutex_lock(&mu);
	if (!code)
		((struct queue *)cq)->armed = 1;
	pthread_mutex_unlock(&mu);
	return code;
}

// ---- the library ----

EXPORT void **ibv_get_device_list(int *n) {
	if (enter("ibv_get_device_list"))
		return 0;
	if (n)
		*n = device_count;
	count(LISTS, 1);
	return device_list;
}

EXPORT void ibv_free_device_list(void **list) {
	(void)list;
	enter("ibv_free_device_list");
	count(LISTS, -1);
}

EXPORT const char *ibv_get_device_name(void *dev) {
	return enter("ibv_get_device_name") ? 0 : ((struct device *)dev)->name;
}

EXPORT cv_context *ibv_open_device(void *dev) {
	if (enter("ibv_open_device"))
		return 0;
	if (((struct device *)dev)->failed) {
		errno = EIO;
		return 0;
	}
	struct context *c = calloc(1, sizeof *c);
	c->c = (cv_context){.device = dev, .poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_send = post_send, .post_recv = post_recv,
		.cmd_fd = -1, .async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC), .num_comp_vectors = 1};
	c->device = dev;
	pthread_mutex_lock(&mu);
	c->next = contexts;
	contexts = c;
	live[CONTEXTS]++;
	pthread_mutex_unlock(&mu);
	return &c->c;
}

EXPORT int ibv_close_device(cv_context *context) {
	int code = enter("ibv_close_device");
	pthread_mutex_lock(&mu);
	for (struct context **p = &contexts; !code && *p; p = &(*p)->next)
		if (&(*p)->c == context) {
			struct context *c = *p;
			*p = c->next;
			close(c->c.async_fd);
			free(c);
			live[CONTEXTS]--;
			break;
		}
	pthread_mutex_unlock(&mu);
	errno = code;
	return code ? -1 : 0;
}

EXPORT int ibv_query_device(cv_context *c, cv_device_attr *a) {
	(void)c;
	int code = enter("ibv_query_device");
	*a = (cv_device_attr){.fw_ver = "fake", .max_mr_size = UINT64_MAX, .max_qp_wr = 4096, .max_cqe = 4096, .max_sge = MAX_PIECES, .max_sge_rd = MAX_PIECES,
		.max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .max_qp = 1024, .phys_port_cnt = 1};
	return code;
}

EXPORT int ibv_query_port(cv_context *c, uint8_t port, cv_port_attr *a) {
	int code = enter("ibv_query_port");
	if (port != 1 && !code)
		code = EINVAL;
	*a = (cv_port_attr){.state = port_down || ((struct context *)c)->device->unplugged ? 1 : 4, .max_mtu = 5, .active_mtu = 5, .gid_tbl_len = 4, .max_msg_sz = 1u << 30, .link_layer = 2};
	return code;
}

// fake_port takes the port down; 0 brings it up.
EXPORT int fake_port(const char *unused, long down, long unused3) {
	pthread_mutex_lock(&mu);
	port_down = (int)down;
	pthread_mutex_unlock(&mu);
	return 0;
}

// The tables of GIDs: the initial one, the one after the link was down, one of IPv6 only,
// and one of RoCE v1 only.
enum { GIDS = 4, TABLES = 4 };
static const struct { cv_gid gid; int type; } gids[TABLES][GIDS] = {
	{{{.raw = {0xfe, 0x80, [15] = 1}}, 1}, {{.raw = {0xfe, 0x80, [15] = 1}}, 2}, {{.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1}}, 2}},
	{{{.raw = {0xfe, 0x80, [15] = 1}}, 1}, {{.raw = {0xfe, 0x80, [15] = 1}}, 2}, {{.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1}}, 1}, {{.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1}}, 2}},
	{{{.raw = {0xfe, 0x80, [15] = 1}}, 1}, {{.raw = {0xfe, 0x80, [15] = 1}}, 2}, {{.raw = {0xfd, [15] = 1}}, 2}},
	{{{.raw = {0xfe, 0x80, [15] = 1}}, 1}},
};
// fake_gids gives all ports another table of GIDs, without an event.
EXPORT int fake_gids(const char *unused, long which, long unused3) {
	pthread_mutex_lock(&mu);
	table = (int)which;
	pthread_mutex_unlock(&mu);
	return 0;
}

static cv_ah_attr last_path;

// fake_path returns an attribute of the latest pair's path: 0 the traffic class, 1 the
// service level, 2 the index of its GID.
EXPORT int fake_path(const char *unused, long what, long unused3) {
	pthread_mutex_lock(&mu);
	int r = what == 0 ? last_path.grh.traffic_class : what == 1 ? last_path.sl : last_path.grh.sgid_index;
	pthread_mutex_unlock(&mu);
	return r;
}

EXPORT int ibv_query_gid(cv_context *c, uint8_t port, int index, cv_gid *gid) {
	(void)c, (void)port;
	if (enter("ibv_query_gid"))
		return -1;
	*gid = gids[table][index & 3].gid;
	return 0;
}

EXPORT int _ibv_query_gid_ex(cv_context *c, uint32_t port, uint32_t index, cv_gid_entry *e, uint32_t flags, size_t size) {
	(void)c, (void)flags, (void)size;
	int code = enter("_ibv_query_gid_ex");
	if (!code && !gids[table][index & 3].type)
		code = ENODATA;
	*e = (cv_gid_entry){.gid = gids[table][index & 3].gid, .gid_index = index, .port_num = port, .gid_type = (uint32_t)gids[table][index & 3].type};
	return code;
}

EXPORT cv_pd *ibv_alloc_pd(cv_context *c) {
	if (enter("ibv_alloc_pd"))
		return 0;
	cv_pd *p = calloc(1, sizeof *p);
	p->context = c;
	count(DOMAINS, 1);
	return p;
}

EXPORT int ibv_dealloc_pd(cv_pd *p) {
	int code = enter("ibv_dealloc_pd");
	if (!code) {
		free(p);
		count(DOMAINS, -1);
	}
	return code;
}

static cv_mr *registered(cv_pd *pd, void *bytes, uint64_t base, size_t length, int access) {
	struct region *r = calloc(1, sizeof *r);
	pthread_mutex_lock(&mu);
	r->m = (cv_mr){.context = pd->context, .pd = pd, .addr = (void *)(uintptr_t)base, .length = length, .lkey = next_key, .rkey = next_key + 1};
	if (fabric) {
		fabric_lock();
		r->m.lkey = fabric->next_key++, r->m.rkey = fabric->next_key++;
		pthread_mutex_unlock(&fabric->mu);
	}
	next_key += 2;
	share_region(r->m.rkey, access, (uint64_t)(uintptr_t)bytes, base, length);
	r->bytes = bytes, r->base = base, r->access = access, r->next = regions;
	regions = r;
	live[REGIONS]++;
	pthread_mutex_unlock(&mu);
	return &r->m;
}

EXPORT cv_mr *ibv_reg_mr(cv_pd *pd, void *address, size_t length, int access) {
	return enter("ibv_reg_mr") ? 0 : registered(pd, address, (uint64_t)(uintptr_t)address, length, access);
}

// A dma-buf is any file that can be mapped here, from its position on: a memfd. As with a
// real NIC, base and offset have the same place in their pages.
EXPORT cv_mr *ibv_reg_dmabuf_mr(cv_pd *pd, uint64_t offset, size_t length, uint64_t base, int fd, int access) {
	if (enter("ibv_reg_dmabuf_mr"))
		return 0;
	off_t first = lseek(fd, 0, SEEK_CUR);
	if (first < 0 || (base ^ offset) % sysconf(_SC_PAGESIZE)) {
		errno = EINVAL;
		return 0;
	}
	char *p = mmap(0, offset + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, first);
	if (p == MAP_FAILED)
		return 0;
	cv_mr *m = registered(pd, p + offset, base, length, access);
	((struct region *)m)->mapped = p;
	return m;
}

EXPORT int ibv_dereg_mr(cv_mr *m) {
	int code = enter("ibv_dereg_mr");
	if (code)
		return code;
	pthread_mutex_lock(&mu);
	for (struct region **p = &regions; *p; p = &(*p)->next)
		if (&(*p)->m == m) {
			struct region *r = *p;
			*p = r->next;
			share_region(r->m.rkey, 0, 0, 0, 0);
			if (r->mapped)
				munmap(r->mapped, (size_t)(r->bytes - (char *)r->mapped) + r->m.length);
			free(r);
			live[REGIONS]--;
			break;
		}
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT cv_comp_channel *ibv_create_comp_channel(cv_context *c) {
	if (enter("ibv_create_comp_channel"))
		return 0;
	cv_comp_channel *h = calloc(1, sizeof *h);
	h->context = c;
	h->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	count(CHANNELS, 1);
	return h;
}

EXPORT int ibv_destroy_comp_channel(cv_comp_channel *h) {
	int code = enter("ibv_destroy_comp_channel");
	if (!code) {
		close(h->fd);
		free(h);
		count(CHANNELS, -1);
	}
	return code;
}

EXPORT cv_cq *ibv_create_cq(cv_context *c, int entries, void *user, cv_comp_channel *h, int vector) {
	(void)vector;
	if (enter("ibv_create_cq"))
		return 0;
	struct queue *q = calloc(1, sizeof *q);
	q->c = (cv_cq){.context = c, .channel = h, .cq_context = user, .cqe = entries};
	q->size = entries;
	q->entries = calloc((size_t)entries, sizeof *q->entries);
	count(QUEUES, 1);
	return &q->c;
}

EXPORT int ibv_destroy_cq(cv_cq *cq) {
	int code = enter("ibv_destroy_cq");
	if (!code) {
		free(((struct queue *)cq)->entries);
		free(cq);
		count(QUEUES, -1);
	}
	return code;
}

EXPORT int ibv_get_cq_event(cv_comp_channel *h, void **cq, void **user) {
	*cq = *user = 0;
	if (enter("ibv_get_cq_event"))
		return -1;
	uint64_t n;
	return read(h->fd, &n, sizeof n) == sizeof n ? 0 : -1;
}

EXPORT void ibv_ack_cq_events(cv_cq *cq, unsigned n) {
	(void)cq, (void)n;
	enter("ibv_ack_cq_events");
}

EXPORT cv_qp *ibv_create_qp(cv_pd *pd, cv_qp_init_attr *a) {
	if (enter("ibv_create_qp"))
		return 0;
	struct pair *p = calloc(1, sizeof *p);
	p->q = (cv_qp){.context = pd->context, .pd = pd, .send_cq = a->send_cq, .recv_cq = a->recv_cq};
	p->requests = a->cap.max_send_wr, p->pieces = a->cap.max_send_sge;
	pthread_mutex_lock(&mu);
	p->q.qp_num = next_pair++;
	if (fabric) {
		fabric_lock();
		p->q.qp_num = fabric->next_pair++;
		pthread_mutex_unlock(&fabric->mu);
	}
	p->next = pairs;
	pairs = p;
	live[PAIRS]++;
	pthread_mutex_unlock(&mu);
	return &p->q;
}

EXPORT int ibv_modify_qp(cv_qp *q, cv_qp_attr *a, int mask) {
	struct pair *p = (struct pair *)q;
	pthread_mutex_lock(&mu);
	int code = enter_locked("ibv_modify_qp");
	if (!code && context_of(p)->over && a->qp_state != CV_QPS_ERR)
		code = EIO;
	if (!code && a->qp_state == CV_QPS_INIT) {
		if (p->state != CV_QPS_RESET || mask != (CV_QP_STATE | CV_QP_PKEY_INDEX | CV_QP_PORT | CV_QP_ACCESS_FLAGS))
			code = EINVAL;
		p->access = a->qp_access_flags;
	} else if (!code && a->qp_state == CV_QPS_RTR) {
		if (p->state != CV_QPS_INIT || !(mask & CV_QP_DEST_QPN) || !a->ah_attr.is_global || a->path_mtu < 1 || a->path_mtu > 5)
			code = EINVAL;
		else if (!gids[table][a->ah_attr.grh.sgid_index & 3].type)
			code = EINVAL; // it has no such address any more
		p->rtr = *a;
		last_path = a->ah_attr;
	} else if (!code && a->qp_state == CV_QPS_RTS && p->state != CV_QPS_RTR)
		code = EINVAL;
	if (!code) {
		p->state = a->qp_state;
		share_pair(q->qp_num, p->rtr.dest_qp_num, p->access, p->state);
	}
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return code;
}

EXPORT int ibv_destroy_qp(cv_qp *q) {
	struct pair *p = (struct pair *)q;
	pthread_mutex_lock(&mu);
	int code = enter_locked("ibv_destroy_qp");
	if (!code) {
		while (current && current->pair == p)
			pthread_cond_wait(&idle, &mu);
		for (struct request **r = &requests; *r;)
			if ((*r)->pair == p) {
				struct request *gone = *r;
				*r = gone->next;
				free(gone);
			} else
				r = &(*r)->next;
		last_request = &requests;
		while (*last_request)
			last_request = &(*last_request)->next;
		share_pair(q->qp_num, 0, 0, -1);
		for (struct pair **o = &pairs; *o; o = &(*o)->next)
			if (*o == p) {
				*o = p->next;
				break;
			}
		free(p);
		live[PAIRS]--;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

// fake_devices sets the number of devices, which are called fake0, fake1 and so on.
EXPORT int fake_devices(const char *unused, long n, long unused3) {
	pthread_mutex_lock(&mu);
	device_count = n < 1 ? 1 : n > MAX_DEVICES ? MAX_DEVICES : (int)n;
	for (int i = 0; i < MAX_DEVICES; i++) {
		snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
		device_list[i] = i < device_count ? &devices[i] : 0;
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_break makes a device fail: it reports an event, and its connections end. Objects
// of it cannot be used any more; it can be opened again after fake_mend.
EXPORT int fake_break(const char *unused, long i, long unused3) {
	pthread_mutex_lock(&mu);
	devices[i].failed = 1;
	for (struct context *c = contexts; c; c = c->next) {
		uint64_t one = 1;
		if (c->device != &devices[i] || c->over)
			continue;
		c->event = 8, c->over = 1;
		if (write(c->c.async_fd, &one, sizeof one) < 0)
			abort();
	}
	for (struct pair *p = pairs; p; p = p->next)
		if (context_of(p)->device == &devices[i])
			p->state = CV_QPS_ERR;
	pthread_cond_signal(&work);
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_unplug disconnects a device's cable: there is no answer in either direction, and its
// port is down.
EXPORT int fake_unplug(const char *unused, long i, long unused3) {
	pthread_mutex_lock(&mu);
	devices[i].unplugged = 1;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_mend repairs a device that has failed, or was disconnected.
EXPORT int fake_mend(const char *unused, long i, long unused3) {
	pthread_mutex_lock(&mu);
	devices[i].failed = devices[i].unplugged = 0;
	pthread_mutex_unlock(&mu);
	return 0;
}

// fake_event makes every open device report an event.
EXPORT int fake_event(const char *unused, long kind, long unused3) {
	pthread_mutex_lock(&mu);
	for (struct context *c = contexts; c; c = c->next) {
		uint64_t one = 1;
		c->event = (int)kind;
		if (write(c->c.async_fd, &one, sizeof one) < 0)
			abort();
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT int ibv_get_async_event(cv_context *c, cv_async_event *e) {
	if (enter("ibv_get_async_event"))
		return -1;
	uint64_t n;
	if (read(c->async_fd, &n, sizeof n) != sizeof n)
		return -1;
	pthread_mutex_lock(&mu);
	*e = (cv_async_event){.event_type = ((struct context *)c)->event};
	pthread_mutex_unlock(&mu);
	return 0;
}

EXPORT void ibv_ack_async_event(cv_async_event *e) {
	(void)e;
	enter("ibv_ack_async_event");
}

EXPORT const char *ibv_wc_status_str(int status) {
	if (enter("ibv_wc_status_str"))
		return 0;
	switch (status) {
	case 0: return "success";
	case 5: return "Work Request Flushed Error";
	case 10: return "remote access error";
	case 12: return "transport retry counter exceeded";
	}
	return "another error";
}

EXPORT const char *ibv_event_type_str(int type) {
	if (enter("ibv_event_type_str"))
		return 0;
	return type == 8 ? "local catastrophic error" : "an event";
}

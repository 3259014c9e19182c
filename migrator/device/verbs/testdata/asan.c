// asan.c makes every call of the shim through the fake library, in a process that
// the address sanitizer watches. Argument: the fake's path.
#include "../shim.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *functions[CV_COUNT];
static char done[CV_COUNT];

static void check(int op, uint64_t *v, void *buf, int want) {
	int code = cv_call(functions, op, v, buf);
	if (code != want) {
		fprintf(stderr, "%s: %d, want %d\n", cv_name(op), code, want);
		exit(1);
	}
	done[op] = 1;
}

// CALL makes a call with these words. It is worth what the first is afterwards.
#define CALL(op, buf, ...)                 \
	({                                     \
		uint64_t words[8] = {__VA_ARGS__}; \
		memcpy(v, words, sizeof words);    \
		check(CV_##op, v, buf, 0);         \
		v[0];                              \
	})

// end is one pair with its memory. All that is given to the shim is as long as it
// must be, and not a byte longer.
struct end { uint64_t channel, queue, pair, region; uint32_t number, lkey, rkey; char *bytes; };

enum { BYTES = 4096 };

static uint64_t *v;

static void make(struct end *e, uint64_t context, uint64_t domain) {
	e->bytes = calloc(1, BYTES);
	e->region = CALL(ibv_reg_mr, 0, domain, (uintptr_t)e->bytes, BYTES, 7);
	e->lkey = (uint32_t)v[1], e->rkey = (uint32_t)v[2];
	e->channel = CALL(ibv_create_comp_channel, 0, context);
	e->queue = CALL(ibv_create_cq, 0, context, 2 * CV_BATCH, e->channel);
	e->pair = CALL(ibv_create_qp, 0, domain, e->queue, 2 * CV_BATCH, 4);
	e->number = (uint32_t)v[1];
}

static void join(struct end *e, struct end *other, const uint8_t *gid) {
	cv_path *path = calloc(1, sizeof *path);
	*path = (cv_path){.pair = other->number, .global = 1, .gid_index = 2, .port = 1, .mtu = 3, .reads = 4, .their_reads = 4, .timeout = 11, .retries = 6, .hops = 64};
	memcpy(path->gid, gid, 16);
	CALL(ibv_modify_qp, 0, e->pair, CV_QPS_INIT, 1, 7);
	CALL(ibv_modify_qp, path, e->pair, CV_QPS_RTR);
	CALL(ibv_modify_qp, path, e->pair, CV_QPS_RTS);
	free(path);
}

// await takes one completion.
static void await(struct end *e, uint64_t id) {
	cv_wc *one = malloc(sizeof *one);
	while (CALL(ibv_poll_cq, one, e->queue, 1) == 0)
		;
	if (one->wr_id != id || one->status) {
		fprintf(stderr, "request %d ends with %d, want %d\n", (int)one->wr_id, one->status, (int)id);
		exit(1);
	}
	free(one);
}

int main(int argc, char **argv) {
	if (argc != 2)
		return 2;
	v = malloc(8 * sizeof *v); // its ends are watched
	void *lib = dlopen(argv[1], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	for (int op = 0; op < CV_COUNT; op++)
		if (cv_version(op) && !(functions[op] = dlsym(lib, cv_name(op)))) {
			fprintf(stderr, "%s is missing\n", cv_name(op));
			return 1;
		}
	if (cv_name(-1) || cv_name(CV_COUNT) || cv_version(-1) || cv_version(CV_COUNT) || cv_call(functions, CV_COUNT, v, 0) != 22)
		return 1;
	int (*event)(const char *, long, long) = (int (*)(const char *, long, long))dlsym(lib, "fake_event");

	uint64_t list = CALL(ibv_get_device_list, 0, 0);
	CALL(ibv_get_device_name, 0, 0, list, 0);
	uint64_t context = CALL(ibv_open_device, 0, 0, list, 0);
	CALL(ibv_free_device_list, 0, list);
	CALL(ibv_query_device, 0, context);
	CALL(ibv_query_port, 0, context, 1);
	uint8_t *gid = malloc(16);
	CALL(ibv_query_gid, gid, context, 1, 0);
	CALL(_ibv_query_gid_ex, gid, context, 1, 2);
	uint64_t domain = CALL(ibv_alloc_pd, 0, context);
	int fd = memfd_create("dmabuf", 0);
	if (ftruncate(fd, 8192))
		return 1;
	uint64_t buf = CALL(ibv_reg_dmabuf_mr, 0, domain, 4096, 4096, 1 << 20, (uint64_t)fd, 5);
	close(fd);
	CALL(ibv_dereg_mr, 0, buf);

	struct end *ends = calloc(2, sizeof *ends), *a = ends, *b = ends + 1;
	make(a, context, domain);
	make(b, context, domain);
	join(a, b, gid);
	join(b, a, gid);
	free(gid);

	// A whole batch of requests, one of them in pieces to the last byte.
	cv_work *work = calloc(CV_BATCH, sizeof *work);
	for (int i = 0; i < CV_BATCH; i++)
		work[i] = (cv_work){.id = (uint64_t)i, .local = (uintptr_t)a->bytes + i, .remote = (uintptr_t)b->bytes + i, .length = 1, .lkey = a->lkey, .rkey = b->rkey};
	for (int i = CV_BATCH - 3; i < CV_BATCH; i++)
		work[i].flags = (uint32_t)CV_JOINED, work[i].local = (uintptr_t)a->bytes + BYTES - (uintptr_t)(CV_BATCH - i);
	work[CV_BATCH - 4].flags = CV_SIGNALED;
	memset(b->bytes, 7, CV_BATCH);
	CALL(ibv_req_notify_cq, 0, a->queue);
	if (CALL(ibv_post_send, work, a->pair, CV_BATCH) != CV_BATCH - 3) {
		fprintf(stderr, "%d requests were taken\n", (int)v[0]);
		return 1;
	}
	await(a, CV_BATCH - 4);
	while (v[0] = a->channel, cv_call(functions, CV_ibv_get_cq_event, v, 0) != 0)
		;
	done[CV_ibv_get_cq_event] = 1;
	CALL(ibv_ack_cq_events, 0, a->queue, 1);
	if (a->bytes[0] != 7 || a->bytes[BYTES - 1] != 7) {
		fprintf(stderr, "a READ in pieces brings other bytes\n");
		return 1;
	}
	// What is not a list of requests is refused, and not looked at.
	memset(v, 0, 64), v[0] = a->pair, v[1] = CV_BATCH + 1;
	check(CV_ibv_post_send, v, work, 22);
	memset(v, 0, 64), v[0] = a->pair;
	check(CV_ibv_post_send, v, work, 22);
	memset(v, 0, 64), v[0] = a->pair, v[1] = 1, work[0].flags = (uint32_t)CV_JOINED;
	check(CV_ibv_post_send, v, work, 22);
	free(work);

	event(0, 8, 0);
	CALL(ibv_get_async_event, 0, context);
	uint64_t kind = v[1];
	CALL(ibv_ack_async_event, 0, v[0], kind);
	CALL(ibv_event_type_str, 0, kind);
	CALL(ibv_wc_status_str, 0, 12);

	CALL(ibv_modify_qp, 0, a->pair, CV_QPS_ERR);
	for (struct end *e = ends; e < ends + 2; e++) {
		CALL(ibv_destroy_qp, 0, e->pair);
		CALL(ibv_destroy_cq, 0, e->queue);
		CALL(ibv_destroy_comp_channel, 0, e->channel);
		CALL(ibv_dereg_mr, 0, e->region);
		free(e->bytes);
	}
	free(ends);
	CALL(ibv_dealloc_pd, 0, domain);
	CALL(ibv_close_device, 0, context);
	free(v);
	for (int op = 0; op < CV_COUNT; op++)
		if (!done[op]) {
			fprintf(stderr, "%s is never called\n", cv_name(op));
			return 1;
		}
	int (*live)(const char *, long, long) = (int (*)(const char *, long, long))dlsym(lib, "fake_live");
	if (live("", 0, 0) != 0) {
		fprintf(stderr, "%d handles are left\n", live("", 0, 0));
		return 1;
	}
	puts("every call is clean");
	return 0;
}

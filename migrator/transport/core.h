// core.h is the code of one thread of a kernel. kernels.cu is compiled with it to PTX,
// and the fake driver of the tests runs the same lines on a processor, thread by thread.
//
// The sum of n bytes is Σ term(i) modulo 2^64 over their 64-bit little-endian words w(i),
// the last one padded with zeros:
//
//	k = (i+1)·0x9e3779b97f4a7c15
//	term = (low(w) + low(k) mod 2^32) · (high(w) + high(k) mod 2^32)
//
// As a sum it can be computed piece by piece in any order. It depends on the position of
// each word, so that a block in another's place is detected.
#ifndef CASCADE_KERNEL_CORE_H
#define CASCADE_KERNEL_CORE_H

typedef unsigned char kv_byte;
typedef unsigned int kv_u32;
typedef unsigned long long kv_u64;

// kv_region is one region of a layout at both ends: 5 words of 8 bytes.
struct kv_region {
	kv_u64 src, src_stride;
	kv_u64 dst, dst_stride;
	kv_u64 bytes;
};

// kv_work is the piece of a region that a group of threads copies and sums.
struct kv_work {
	const kv_byte *src;
	kv_byte *dst; // 0 means sum only
	kv_u64 bytes;
	kv_u64 first; // number of the first word within its region
};

KV_DEVICE kv_u64 kv_term(kv_u64 w, kv_u64 i) {
	kv_u64 k = (i + 1) * 0x9e3779b97f4a7c15ull;
	kv_u32 low = (kv_u32)w + (kv_u32)k, high = (kv_u32)(w >> 32) + (kv_u32)(k >> 32);
	return (kv_u64)low * high;
}

KV_DEVICE kv_u64 kv_vector(uint4 v, kv_u64 word) {
	return kv_term((kv_u64)v.y << 32 | v.x, word) + kv_term((kv_u64)v.w << 32 | v.z, word + 1);
}

// kv_bytes copies the thread's words of [from, bytes), byte by byte.
KV_DEVICE kv_u64 kv_bytes(struct kv_work k, kv_u64 from, kv_u32 thread, kv_u32 threads) {
	kv_u64 sum = 0;
	for (kv_u64 at = from + 8ull * thread; at < k.bytes; at += 8ull * threads) {
		kv_u64 w = 0;
		for (kv_u32 b = 0; b < 8 && at + b < k.bytes; b++) {
			kv_byte c = k.src[at + b];
			w |= (kv_u64)c << (8 * b);
			if (k.dst)
				k.dst[at + b] = c;
		}
		sum += kv_term(w, k.first + at / 8);
	}
	return sum;
}

// kv_part copies the thread's share of the work, and returns the sum of it.
KV_DEVICE kv_u64 kv_part(struct kv_work k, kv_u32 thread, kv_u32 threads) {
	if (((kv_u64)k.src | (kv_u64)k.dst) & 15)
		return kv_bytes(k, 0, thread, threads);
	const uint4 *src = (const uint4 *)k.src;
	uint4 *dst = (uint4 *)k.dst;
	kv_u64 n = k.bytes / 16, sum = 0, i = thread;
	for (; i + 3ull * threads < n; i += 4ull * threads) { // four loads in flight
		uint4 a = KV_LOAD(src + i), b = KV_LOAD(src + i + threads);
		uint4 c = KV_LOAD(src + i + 2ull * threads), d = KV_LOAD(src + i + 3ull * threads);
		if (k.dst) {
			KV_STORE(dst + i, a);
			KV_STORE(dst + i + threads, b);
			KV_STORE(dst + i + 2ull * threads, c);
			KV_STORE(dst + i + 3ull * threads, d);
		}
		sum += kv_vector(a, k.first + 2 * i) + kv_vector(b, k.first + 2 * (i + threads));
		sum += kv_vector(c, k.first + 2 * (i + 2ull * threads)) + kv_vector(d, k.first + 2 * (i + 3ull * threads));
	}
	for (; i < n; i += threads) {
		uint4 a = KV_LOAD(src + i);
		if (k.dst)
			KV_STORE(dst + i, a);
		sum += kv_vector(a, k.first + 2 * i);
	}
	return sum + kv_bytes(k, n * 16, thread, threads);
}

// How a kernel finds the blocks of an entry.
#define KV_COPY 0    // both sides are pools: ids are pairs of source and target
#define KV_GATHER 1  // the target is packed: entry e is its block e
#define KV_SCATTER 2 // the source is packed
#define KV_SUM 3     // there is no target; the source is a pool
#define KV_SUM_DST 4 // there is no source: the target is summed

// kv_item returns piece p of region r of entry e, for item number (e·regions + r)·pieces
// + p.
KV_DEVICE struct kv_work kv_item(int how, const struct kv_region *regions, kv_u64 count, const kv_u32 *ids, kv_u64 piece, kv_u64 pieces, kv_u64 item) {
	kv_u64 at = item % pieces * piece, r = item / pieces % count, e = item / pieces / count;
	struct kv_region g = regions[r];
	kv_u64 from = how == KV_SCATTER ? e : ids[2 * e], to = how == KV_GATHER ? e : ids[2 * e + 1];
	struct kv_work k;
	if (how == KV_SUM_DST)
		k.src = (const kv_byte *)(g.dst + to * g.dst_stride + at);
	else
		k.src = (const kv_byte *)(g.src + from * g.src_stride + at);
	k.dst = how >= KV_SUM ? (kv_byte *)0 : (kv_byte *)(g.dst + to * g.dst_stride + at);
	k.bytes = at >= g.bytes ? 0 : g.bytes - at < piece ? g.bytes - at : piece;
	k.first = at / 8;
	return k;
}

#endif

// kernels.cu copies and checksums the blocks of a plan in one launch. "make generate" compiles
// it to kernels.ptx; see core.h for the code of one thread.
//
// All kernels take the same arguments, each of 8 bytes:
//
//	regions  device address of kv_region[count]
//	count    regions of a block
//	ids      device address of pairs of block numbers (u32 source, u32 target)
//	entries  pairs
//	piece    bytes of a region that a CTA copies at a time, a multiple of 16
//	pieces   of the largest region
//	sums     address of u64[entries·count·pieces], in item order; may be pinned host memory
//
// A CTA has at most 1,024 threads, a multiple of 32; a grid may have any number of CTAs.
#define KV_DEVICE static __device__ __forceinline__
#define KV_LOAD(p) __ldcs(p)
#define KV_STORE(p, v) __stcs(p, v)
#include "core.h"

// kv_total adds the sums of a CTA's threads; thread 0 has the result. All threads call
// it.
KV_DEVICE kv_u64 kv_total(kv_u64 sum) {
	__shared__ kv_u64 warps[32];
	for (int step = 16; step > 0; step >>= 1)
		sum += __shfl_down_sync(0xffffffffu, sum, step);
	if (threadIdx.x % 32 == 0)
		warps[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x == 0)
		for (kv_u32 w = 1; w < blockDim.x / 32; w++)
			sum += warps[w];
	__syncthreads();
	return sum;
}

#define KV_KERNEL(name, how)                                                                                            \
	extern "C" __global__ void __launch_bounds__(1024)                                                                  \
	name(const kv_region *regions, kv_u64 count, const kv_u32 *ids, kv_u64 entries, kv_u64 piece, kv_u64 pieces, kv_u64 *sums) { \
		kv_u64 items = entries * count * pieces;                                                                        \
		for (kv_u64 item = blockIdx.x; item < items; item += gridDim.x) {                                               \
			kv_work k = kv_item(how, regions, count, ids, piece, pieces, item);                                         \
			kv_u64 sum = kv_total(kv_part(k, threadIdx.x, blockDim.x));                                                 \
			if (threadIdx.x == 0)                                                                                       \
				sums[item] = sum;                                                                                       \
		}                                                                                                               \
	}

KV_KERNEL(kv_copy, KV_COPY)
KV_KERNEL(kv_gather, KV_GATHER)
KV_KERNEL(kv_scatter, KV_SCATTER)
KV_KERNEL(kv_sum, KV_SUM)
KV_KERNEL(kv_sum_dst, KV_SUM_DST)

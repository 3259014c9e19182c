// Package cuda carries blocks between two pools in the memory of GPUs of one host: the
// receiver maps the pool of the source, and its own GPU copies the blocks out of it.
//
// NewGPU opens a GPU. Attach maps the pool of an engine in another process, Allocate
// makes a pool in this one; both return a transport.Memory whose Device is a *Memory. New
// returns the transport. A source sends receivers the Handle of its engine's memory: the
// name of a CUDA IPC allocation, or a descriptor that the receiver maps read-only. The
// socket, the ticket and the check that ends each pull are those of package lease.
//
// As with shared memory, a receiver can read the whole pool once it is mapped, and is trusted
// with it: it runs as the same user on the same host.
//
// Invariants:
//
//  1. A pull that is cancelled or closed returns when the GPU has finished what was launched,
//     since a launch cannot be cancelled. That makes Close a fence.
//  2. After an error that makes a context useless, everything in the context is closed, every
//     pull in it fails, and the next use makes a new context.
//
// A pull is one launch of a kernel that finds the blocks of a plan by itself and sums
// while it copies; long runs of blocks are copied by the copy engines. It runs on a
// stream of the lowest priority. Priorities count among the streams of one process, and
// among processes that share a GPU by MPS: there the engine's work goes first. Without
// MPS the GPU time-slices processes, and a launch delays the engine for as long as it
// lasts.
package cuda

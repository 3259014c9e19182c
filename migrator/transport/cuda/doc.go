// Package cuda carries blocks between two pools in the memory of GPUs of one
// machine: the receiver maps the source's pool, and its own GPU copies out of it.
//
// A source hands on the name of its engine's memory (Handle), and never touches
// the blocks: by CUDA IPC, or as a descriptor that the receiver maps for reading
// only. What is around that is package local's: socket, ticket, and the check that
// ends each pull.
//
// A pull is one launch of a kernel that finds the blocks of a plan by itself, and
// sums while it copies; long runs of blocks are left to the copy engines. All of it is
// on a stream of its own with the lowest priority. That counts among the streams of one
// process, and among those of processes that share a GPU by MPS: then the engine's work
// goes first. Without MPS the GPU gives processes turns, and a launch takes the engine's
// for as long as it lasts. What was launched cannot be taken back, so a pull that is cut
// short returns when the GPU is done with it: that is the fence.
//
// An error of the GPU makes its context useless. All that is in it is closed then,
// every pull in it fails, and the next use makes a new one.
package cuda

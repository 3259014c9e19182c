// Package verbs carries blocks by RDMA: the receiver's NIC reads them out of the source's
// pool, without the source's processor.
//
// New returns the transport, whose Handler the migrator's HTTP/2 server serves under
// Path. A pull is a reliable connection of two queue pairs, which is set up over the
// migrators' gRPC: the receiver presents its ticket together with its endpoint, and is
// answered with the layout, the source's endpoint, and the key of its pool. The stream
// stays open for the life of the pull; when it ends, the connection ends, and the other
// way round. Plans are posted as READs, in batches, from block tables alone: what is
// contiguous at the source is one READ, wherever its pieces go. Blocks that are scattered
// at the source are a READ each, since a NIC has no table of them.
//
// Invariants:
//
//  1. The queue pair is the fence of both ends. After it was moved to the error state and
//     destroyed, the NIC neither answers nor writes for it. Revoke returns after that at the
//     source; Close and a failed Pull return after that at the receiver. An end that cannot
//     destroy its pair deregisters the memory; if that fails too, the memory is never
//     released.
//  2. With bounce buffers a peer reaches nothing but those buffers, into which the source
//     packs announced blocks only. Without them it can read the whole pool, which the key
//     covers, until its pair is destroyed.
//  3. Every block's checksum is verified. The source names the checksums over the migrators'
//     own connection.
//
// A pool is registered when it is first used, and stays registered as long as it is the
// engine's pool and the transport runs: its pages are locked for that time. Memory of a
// GPU is registered as a dma-buf if its owner exports one.
//
// If the NIC cannot reach a GPU's memory, or is too far from it, blocks go through bounce
// buffers in host memory at that end, or at both. The receiver asks on the stream for
// blocks to be packed into a buffer of the source, reads that buffer, and makes its own
// GPU scatter the blocks that arrived in its own buffer.
//
// The address of a NIC is read for each connection: after a link was down, its addresses
// have other places in the table of GIDs. A device that fails ends all waits for it, and
// is opened again at intervals.
//
// Bytes on the wire are not encrypted, and as authentic as the fabric: reading requires a
// pair that the source has connected, and the key of its pool.
package verbs

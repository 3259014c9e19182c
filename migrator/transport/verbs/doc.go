// Package verbs carries blocks by RDMA: the receiver's NIC reads them out of the
// source's pool, and the source's processor has no part in it.
//
// A move is a reliable connection of two queue pairs. It is set up over the
// migrators' gRPC: the receiver presents its ticket together with its end of the
// connection, and is answered with the layout, the source's end, and the key of its
// pool. The stream stays for the life of the move; when it ends, so does the
// connection, and the other way round. What is pulled is posted as READs, in batches,
// from block tables alone: what lies in a row at the source is one READ, wherever its
// pieces go. Blocks that are scattered there are a READ each: a NIC has no table of
// them.
//
// The fence of both ends is the pair: moved to error and destroyed, the NIC neither
// answers nor writes for it any more. Revoke returns after that at the source, Close
// and a Pull that fails return after that at the receiver. Who cannot destroy a pair
// ends the registration of its memory; where that fails too, the memory is never given
// back.
//
// A pool is registered when it is looked at first, and stays so for as long as it is
// the engine's and the transport runs: its pages are locked for that long. Memory of a
// GPU is registered as a dma-buf where its owner offers one.
//
// Where the NIC does not reach a GPU's memory, or lies too far from it, blocks go by way
// of the host: a move has some slots of host memory at that end, or at both. The
// receiver asks on the stream for blocks to be packed into a slot of the source's, reads
// that, and has its own GPU take what has come out of its own. The slots are all that a
// peer reaches then.
//
// Where a NIC is in its network, it is asked for each connection: a link that was away
// has its addresses elsewhere in their table. A device that fails ends what waits for
// it, and is opened again from time to time.
//
// Bytes on the wire are not encrypted, and no more authentic than the fabric:
// reading needs a pair that the source has connected, and the key of its pool. Every
// block's sum, which the source names over the migrators' own connection, is checked
// all the same.
package verbs

// Package tcp carries blocks over TCP, with TLS off loopback: the way that works
// between any two machines.
//
// A connection is one move. The receiver presents its ticket (package wire) and
// learns the source's layout; then it asks for lists of blocks, two lists ahead,
// and the source answers each with the bytes of all regions of all blocks, in
// order. All integers are little-endian:
//
//	ask      receiver → source: 1 u8, 0 u24, count u32, block u32 × count
//	answer   source → receiver: 2 u8, 0 u24, count u32, bytes
//
// Bytes carry no sums: the receiver has them from the plan. The source reads its
// pool only inside the lease, so that what Revoke leaves behind is at most what
// the sockets hold already.
// With a trust domain a ticket is good only with the certificate of the migrator
// that it was made for.
//
// The kernel's defaults are changed where they cost: no Multipath TCP, and cubic
// instead of bbr where that is allowed (bbr paces on loopback). Buffer sizes stay
// with the kernel's own tuning.
package tcp

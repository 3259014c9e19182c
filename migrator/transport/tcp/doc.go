// Package tcp carries blocks over TCP, with TLS between hosts. It works between any two
// hosts.
//
// A connection serves one pull. The receiver presents its ticket (lease.Hello) and
// receives the layout of the source's pool. Then it asks for lists of blocks, up to two
// lists ahead, and the source answers each with the bytes of all regions of all blocks,
// in order (frame.go).
//
// Invariants:
//
//  1. The source reads its pool only inside the lease. After Revoke the receiver gets at
//     most the bytes that the sockets hold already.
//  2. The source sends announced blocks only (transport.Transport): an ask for any other one
//     ends the connection.
//  3. With a trust domain, a ticket is accepted only with the certificate of the migrator
//     that it was issued for.
//
// Bytes carry no checksums: the plan has them. The package changes defaults of the kernel
// where they cost throughput: no Multipath TCP, and cubic instead of bbr where that is
// allowed (bbr paces on loopback). It leaves buffer sizes to the kernel's tuning.
package tcp

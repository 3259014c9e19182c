// Package httpserver is what Cascade's HTTP servers share that face clients: the embedded
// proxy and the front end of a replica. Handler wraps such a server's handler; package
// servertest checks servers that use it.
//
// Invariants:
//
//  1. No request gets an answer that its handler did not write. net/http answers 200 for
//     a handler that returns without an answer; Handler aborts the request instead.
//  2. An answer never waits for the rest of the request's body, and what follows on the
//     connection of a body that was not read is never taken for a request: over HTTP/1 an
//     answer that begins before the end of the body says "Connection: close". net/http
//     reads up to 256 KiB of the body first, without a deadline, and reuses the
//     connection if that read fails.
//  3. A client that sends the whole body before it reads gets such an answer, too: the
//     rest is read and discarded within lingerTime and lingerBytes before the connection
//     is closed. After that nothing reads the body.
//  4. A client cannot have any number of requests begun by resetting them: see ConnContext.
//
// Budget bounds what the bodies of requests can cost a server before it serves them: the
// memory that all unfinished and waiting bodies of a process occupy together. Each request
// takes a Share of it, which grows with the memory that the server allocates for the
// request, so that what a client announces costs nothing. A server that cannot enlarge a
// share refuses the request. Pace says until when the next bytes of a body must arrive. Both
// decide from their arguments: no clock, no connection, no goroutine.
package httpserver

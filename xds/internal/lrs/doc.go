// Package lrs takes in what proxies report of their load over the Load
// Reporting Service (xDS v3): requests in progress, ended and failed, by cluster
// and endpoint, and what the endpoints' answers tell of their own load.
//
// Service is the gRPC service, Book what it has heard, and the questions that
// others have: how busy the proxies see each endpoint (Seen), whether anything
// still runs on endpoints that are to go (Active), and whether a group of nodes
// has fared worse since a change (Judge). It decides nothing and knows no
// replica by name: addresses are all that proxies tell.
//
// Invariants: a node's message takes the place of its last one whole; the node
// description that every message repeats is never decoded or kept; clusters that
// are not Cascade's are passed over; who falls silent stops counting within three
// intervals.
package lrs

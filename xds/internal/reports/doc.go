// Package reports receives load reports: of migrators over Fleet.Report (Service), and of proxies over the
// Load Reporting Service (LRSService; xDS v3): requests in progress, ended and failed, by cluster
// and endpoint, and the load that the endpoints' responses carry. Receiver, Bucket and Counter are for both: they
// receive a stream with a deadline, bound its rate, and count and log refused streams.
//
// # Reports of proxies
//
// A Book stores the reports and computes from them the load
// that proxies see at each endpoint (Loads), whether requests still run on endpoints
// that are to be removed (Active), and whether a group of nodes has more failures since
// a change (Judge). It decides nothing and does not know replicas: proxies report
// addresses only.
//
// Invariants: a node's message replaces its last one as a whole; the node description
// that every message repeats is neither decoded nor kept; clusters that are not
// Cascade's are ignored; a node that stops reporting stops counting within three
// intervals.
package reports

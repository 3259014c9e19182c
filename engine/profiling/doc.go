// Package profiling decides how a live inference engine is measured, and fits a cost profile to what was
// measured.
//
// It follows the paper's procedure: a Grid divides prompt lengths into buckets that grow exponentially, and
// measures each bucket at exponentially growing batch sizes. Exactly so many requests are in flight during one
// Cell of the grid: when one ends, the next is sent. The log of a cell has the time of every token, and yields
// each request's average batch loads (Load). Fit regresses the paper's QoE coefficients and the coefficients of
// an iteration on these logs, and evaluates both on requests that it has not fitted.
//
// The package sends no requests and reads no clock: whoever measures passes logs in, on real or virtual time.
//
// Invariant: equal logs give equal fits.
package profiling

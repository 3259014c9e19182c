// Package loadreport judges how busy a replica is, from two witnesses: its migrator,
// which counts tokens and may be wrong or lie, and the proxies in front of it,
// which count the requests that they have in progress there.
//
// It is not the service that proxies report to (package load/lrs), and not the
// rule that turns loads into weights (package fleet). Everything here is pure:
// time comes in with every event.
//
// Invariants: a replica's own report counts only while it is fresh and nothing
// contradicts it; what is believed of a replica that is not is Nobody's word,
// never an extreme; the same events at the same times give the same figures.
package loadreport

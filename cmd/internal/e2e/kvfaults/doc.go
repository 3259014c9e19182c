// Package kvfaults runs front ends on emulated engines that hand KV over like stock vLLM, and fails
// like it: every row of the table of failures that was measured on vLLM 0.32.0 is a test. Whatever
// fails, the client's stream goes on, with the token ids of the uninterrupted run, and no engine
// dies.
//
// Everything runs in the virtual time of testing/synctest, on a network in memory, so that leases
// and timeouts have their real lengths. No package imports it.
package kvfaults

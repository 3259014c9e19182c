// Package pull holds what every transport does in the same way: the receiver's Puller,
// the offers of a source, and the accept loop of a source that serves a socket.
//
// A transport opens a pull with Open, and returns a Puller that runs the transport's own
// Steps: copy the blocks of a plan, interrupt that copy, release what was acquired. Its
// source embeds a Source, which exports grants and redeems their tickets.
//
// Invariants:
//
//  1. Steps.Copy runs at most once at a time, never after Steps.Release, and only for a
//     plan that is valid for both pools.
//  2. After one error the Puller copies nothing more: every later Pull fails with it.
//  3. Close returns after the last Copy has returned and everything is released.
package pull

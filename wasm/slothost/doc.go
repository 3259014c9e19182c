// Package slothost holds the slots of one host: for each kind that the host decides,
// the native policy, the modules that may decide instead of it, and the calls
// that they are tried on.
//
// It is told what the fleet wants (Want) and says what became of it (Status). How
// wants and modules come to the host it does not know, nor what the decisions
// are for: callers ask the policies of package policies that the Set gives them.
//
// # Invariants
//
//  1. Every call is answered: before Run, after it, and whatever the modules do,
//     at the latest by the native policy.
//  2. Only a module whose statement Config.Ring signed is ever loaded, and no
//     older statement than the newest that this host admitted, across restarts,
//     but those of the modules that it ran or was to run last.
//  3. A generation that an operator rolled back never runs again on this host.
//
// Calls for bids, outliers and places take no lock and do not allocate, whoever
// decides.
package slothost

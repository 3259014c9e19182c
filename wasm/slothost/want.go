package slothost

import (
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Candidate is a module that the fleet wants in a slot.
type Candidate struct {
	Generation uint64
	Goal       promotion.Goal
	Permille   int    // see promotion.Offer
	Scope      string // see promotion.Offer
	Proven     bool   // the fleet runs it: it skips the gates
	// Name, Version and SHA256 are the statement's; empty or zero stands for
	// whatever it says.
	Name, Version string
	SHA256        sign.Digest
	Signature     []byte // the signature file
	Configuration []byte // for the module
	// Module is the module as its author built it, nil while it is known by its
	// hash only.
	Module []byte
}

// Ended is a generation that an operator took back.
type Ended struct {
	Generation uint64
	Reason     string
}

// Want is what the fleet wants in one slot. The candidates are in ascending
// order: one that is Proven at most, then a newer one at most. None of either
// means that the native policy shall decide.
type Want struct {
	Kind       abi.Kind
	Candidates []Candidate
	RolledBack []Ended
	// Previous is the signature file of what a roll-back of the proven candidate
	// would go back to, nil for none: a host that admits it now, below the proven
	// one, can run it then. One that cannot be admitted is left out.
	Previous []byte
}

// Package lifecycle defines the terms in which control planes and hosts talk
// about policy modules: the kinds of policy, the digest, generation, goal and
// phase of a module, what a slot should run (SlotSpec) and what it runs
// (SlotStatus).
//
// Package wasm/slothost decides the phases on one host, package xds/policyslots
// holds the desired state of the fleet; both use these types, so nothing is
// converted between them but the protobuf messages on the wire.
//
// The package is data: it has no clock, and times are integer Unix
// milliseconds. Guests do not import it.
package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
)

// Kind is what a policy decides. Every host has at most one slot for each kind,
// and the slot has the kind's name. The name of a kind is that of its abi.Kind.
type Kind string

// The kinds.
const (
	BidQuote  Kind = "bid-quote"
	BidSelect Kind = "bid-select"
	Guard     Kind = "guard"
	Outlier   Kind = "outlier"
	Partition Kind = "partition"
	Place     Kind = "place"
	Refine    Kind = "refine"
)

// Kinds returns all kinds, sorted by name.
func Kinds() []Kind {
	return []Kind{BidQuote, BidSelect, Guard, Outlier, Partition, Place, Refine}
}

// KindNames returns the names of all kinds, sorted.
func KindNames() []string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return names
}

// String returns the kind's name.
func (k Kind) String() string { return string(k) }

// Known reports whether k is one of Kinds.
func (k Kind) Known() bool { return slices.Contains(Kinds(), k) }

// PerRequest reports whether the kind decides for one request, so that a canary
// can be a share of the requests. The other kinds decide for many requests at
// once, and their canary is one scope: a model, or for refine a host.
func (k Kind) PerRequest() bool {
	return k == BidQuote || k == BidSelect || k == Outlier || k == Place
}

// Generation numbers the modules of a slot, as their signed statements do.
type Generation uint64

// Native is the generation of the native policy, which is compiled into the host.
const Native Generation = 0

// Digest is the SHA-256 of a module as its author built it, or of data that its
// statement names. The zero Digest stands for none.
type Digest [sha256.Size]byte

// Sum returns the digest of b.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

// String returns the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText returns the digest in hexadecimal, "" for the zero Digest.
func (d Digest) MarshalText() ([]byte, error) {
	if d == (Digest{}) {
		return nil, nil
	}
	return []byte(d.String()), nil
}

// UnmarshalText reads 64 hexadecimal digits, or "" for the zero Digest.
func (d *Digest) UnmarshalText(text []byte) error {
	var out Digest
	if len(text) != 0 {
		if len(text) != 2*len(out) {
			return errDigest
		}
		if _, err := hex.Decode(out[:], text); err != nil {
			return errDigest
		}
	}
	*d = out
	return nil
}

var errDigest = errors.New("digest: must be 64 hexadecimal digits")

// Permilles is the whole of which a canary has a share.
const Permilles = 1000

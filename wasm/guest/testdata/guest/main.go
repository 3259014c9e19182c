// A module that fails on demand, keeps state and talks, for the SDK's tests.
package main

import (
	"errors"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest"
	"github.com/cascadeinfer/cascade/wasm/guest/bidquote"
	"github.com/cascadeinfer/cascade/wasm/guest/bidselect"
	"github.com/cascadeinfer/cascade/wasm/guest/guard"
	"github.com/cascadeinfer/cascade/wasm/guest/outlier"
)

type policy struct{ self *policy }

// Excess panics in the way that own says.
func (p policy) Excess(own, mean policies.Tokens) policies.Tokens {
	var none []policies.Tokens
	switch own {
	case 1:
		panic("no share")
	case 2:
		panic(errors.New("an error"))
	case 3:
		return none[7]
	case 4:
		return p.self.self.Excess(0, mean)
	}
	return 0
}

// Select answers with the number of its calls.
func (policy) Select([]policies.Bid) int {
	n := byte(1)
	if s := guest.State(); len(s) > 0 {
		n = s[0] + 1
	}
	guest.Keep([]byte{n})
	if n > 1 || guest.Keep([]byte{n}) {
		guest.Log(guest.Info, "call "+strconv.Itoa(int(n)))
	}
	return int(n)
}

// sink keeps what garbage allocates from being optimised away.
var sink []byte

// Quote allocates as much as the handover is long, and bids.
func (policy) Quote(p policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	sink = make([]byte, h.Length)
	return policies.Bid{Load: p.Held}, true
}

// Guard denies everything.
func (policy) Guard(ch abi.Change) (abi.Denial, bool) {
	return abi.Denial{Code: 1, Stage: -1, Detail: ch.Next.Model + " is too small"}, true
}

func init() {
	bidquote.Register(policy{})
	bidselect.Register(policy{})
	guard.Register(policy{})
	outlier.Register(policy{})
}

func main() {}

package wiring

import (
	"cmp"
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// maxKeyFile bounds a file of public keys, in bytes.
const maxKeyFile = 64 << 10

const (
	// recordEvery makes hosts record every call: a replica makes a few per second,
	// apart from bids.
	recordEvery = 1
	// shadowCalls and canaryCalls are the default gates of kinds that decide for one
	// request. A replica that begins ten requests per second makes that many
	// placement calls in 20 s, and completes a canary in some minutes, because steps
	// that are too small for it do not wait for their calls
	// (promotion.Config.Patience). The defaults of package promotion are for a
	// hundred times that rate.
	shadowCalls, canaryCalls = 200, 20
)

// Policies is the configuration of one process's policy slots.
type Policies struct {
	Ring         sign.Ring
	Limits       [abi.NumKinds]host.Limit
	Gates        [abi.NumKinds]promotion.Config
	Cache        string // directory of machine code; "" for none
	Instances    int    // calls in one module at a time
	MarksFile    string // where the process keeps its slots' marks; "" for nowhere
	MarksWarning string // why marks are not kept, though they should be; "" for no problem
	RecordEvery  int    // every nth call is recorded
	// UnusedReason is why nothing calls a kind; see [Fleet.UnusedReason].
	UnusedReason [abi.NumKinds]string
}

// ModulesEnabled reports whether modules may decide in this fleet.
func (f *Fleet) ModulesEnabled() bool {
	return !f.Fleet.Policies.Native && (f.Fleet.Policies.ModulesEnabled() || len(f.Trusted) > 0)
}

// Policies reads the keys that the component trusts, and returns the
// configuration of its slots. It is for fleets with ModulesEnabled. replicas is
// how many replicas share the component's modules; 0 means 1.
func (f *Fleet) Policies(role identity.Role, name string, replicas int) (Policies, error) {
	c := f.Fleet.Policies
	p := Policies{Cache: f.resolvePath(c.Cache), RecordEvery: recordEvery, Instances: min(max(replicas, 1)+1, runtime.GOMAXPROCS(0))}
	ring, invalid := f.keyRing()
	if len(invalid) > 0 {
		return p, invalid[0]
	}
	p.Ring = ring
	if err := f.setMarksFile(&p, string(role)+"-"+identity.Escape(name)+".json"); err != nil {
		return p, err
	}
	for k := range abi.NumKinds {
		p.UnusedReason[k] = f.UnusedReason(k)
		if l, ok := c.Limits[k.String()]; ok {
			p.Limits[k].Fuel, p.Limits[k].Wall, p.Limits[k].Pages = l.Fuel, l.Wall, l.Pages
		}
		own := c.Gates.Kinds[k.String()]
		p.Gates[k] = promotion.Config{
			Kind: lifecycle.Kind(k.String()), Ladder: c.Gates.Ladder, Patience: f.scaledGateTime(0, promotion.DefaultPatience),
			Shadow: f.promotionGate(k, own.Shadow, c.Gates.Shadow, config.Gate{Calls: shadowCalls}, promotion.DefaultShadowSoak),
			Canary: withComparisons(f.promotionGate(k, own.Canary, c.Gates.Canary, config.Gate{Calls: canaryCalls}, promotion.DefaultCanarySoak)),
		}
	}
	return p, nil
}

// promotionGate returns a gate of a kind's slot: the file's values for the kind,
// else its values for all kinds, else the default. A number of calls for all kinds
// applies to those that decide for one request only; Fleet.Warnings reports that.
func (f *Fleet) promotionGate(k abi.Kind, own, all, otherwise config.Gate, soak policies.Micros) promotion.Gate {
	if !lifecycle.Kind(k.String()).PerRequest() {
		all.Calls, otherwise.Calls = 0, 0
	}
	return promotion.Gate{
		Calls: cmp.Or(own.Calls, all.Calls, otherwise.Calls), Soak: f.scaledGateTime(cmp.Or(own.Soak, all.Soak), soak), Worse: cmp.Or(own.Worse, all.Worse),
	}
}

// withComparisons returns a canary's gate that also requires comparisons with the
// policy in force for half of its calls: a busy host postpones comparisons.
func withComparisons(g promotion.Gate) promotion.Gate {
	g.Compared = max(1, g.Calls/2)
	return g
}

// Warnings returns what is valid in the fleet file and possibly unintended, with
// what to do about it.
func (f *Fleet) Warnings() (all []string) {
	if why := f.Fleet.MarksWarning(); why != "" {
		all = append(all, why)
	}
	for i, r := range f.Replicas {
		for _, a := range [...]struct{ field, text, who string }{{"address", r.Address, "proxies"}, {"peer", r.Peer, "other migrators"}} {
			if at, err := netip.ParseAddrPort(a.text); err == nil && at.Addr().IsUnspecified() {
				all = append(all, fmt.Sprintf("replicas[%d].%s: %s connect to %s as it is written: set an address of the replica's host", i, a.field, a.who, a.text))
			}
		}
	}
	if !f.ModulesEnabled() {
		return all
	}
	g := f.Fleet.Policies.Gates
	for _, stage := range []struct {
		name string
		all  config.Gate
		own  func(config.KindGates) config.Gate
	}{
		{"shadow", g.Shadow, func(k config.KindGates) config.Gate { return k.Shadow }},
		{"canary", g.Canary, func(k config.KindGates) config.Gate { return k.Canary }},
	} {
		var one []string
		for k := abi.Configure + 1; k < abi.NumKinds; k++ {
			if !lifecycle.Kind(k.String()).PerRequest() && stage.own(g.Kinds[k.String()]).Calls == 0 {
				one = append(one, k.String())
			}
		}
		if stage.all.Calls > 1 && len(one) > 0 {
			all = append(all, fmt.Sprintf("policies.gates.%s.calls: %d applies to kinds that decide for one request; %s are called every few seconds and must have answered 1 call: "+
				"set policies.gates.kinds.%s.%s.calls to require more", stage.name, stage.all.Calls, strings.Join(one, ", "), one[0], stage.name))
		}
	}
	return all
}

// scaledGateTime returns a gate's duration at the fleet's speed: d, or otherwise
// where d is 0; −1 where d is below 0.
func (f *Fleet) scaledGateTime(d time.Duration, otherwise policies.Micros) policies.Micros {
	switch {
	case d == 0:
		d = time.Duration(otherwise) * time.Microsecond
	case d < 0:
		return -1
	}
	return max(1, policies.Micros(f.scaled(d).Microseconds()))
}

func readKeys(path string) ([]ed25519.PublicKey, error) {
	text, err := fileio.Read(path, maxKeyFile)
	if err != nil {
		return nil, err
	}
	keys, err := sign.ParsePublic(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

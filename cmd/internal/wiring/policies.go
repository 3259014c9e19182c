package wiring

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
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
	// (slothost.Gates.Patience). The defaults of package slothost are for a
	// hundred times that rate.
	shadowCalls, canaryCalls = 200, 20
	// shortCalls and shortStep are the gates and the canary, in 1/1000 of the requests, of a short trial.
	shortCalls, shortStep = 5, 500
	// shortWall ends a call of a module on short trial, whatever its kind.
	shortWall = 30 * time.Second
)

// Policies is the configuration of one process's policy slots.
type Policies struct {
	Ring         sign.Ring
	Limits       [abi.NumKinds]host.Limit
	Gates        [abi.NumKinds]slothost.Gates
	Cache        string // directory of machine code; "" for none
	Instances    int    // calls in one module at a time
	MarksFile    string // where the process keeps its slots' marks; "" for nowhere
	MarksWarning string // why marks are not kept, though they should be; "" for no problem
	RecordEvery  int    // every nth call is recorded
	// UnusedReason is why nothing calls a kind; see [Fleet.UnusedReason].
	UnusedReason [abi.NumKinds]string
	// Caveat is when the policies of a kind decide nothing; see [Fleet.Caveat].
	Caveat [abi.NumKinds]string
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
	p := Policies{Cache: f.CodeCache, RecordEvery: recordEvery, Instances: min(max(replicas, 1)+1, runtime.GOMAXPROCS(0))}
	ring, invalid := f.keyRing()
	if len(invalid) > 0 {
		return p, invalid[0]
	}
	p.Ring = ring
	if dir := f.resolvePath(c.Directory); dir != "" {
		p.Cache = filepath.Join(dir, "code")
	}
	if err := f.setMarksFile(&p, string(role)+"-"+identity.Escape(name)+".json"); err != nil {
		return p, err
	}
	for k := range abi.NumKinds {
		p.UnusedReason[k], p.Caveat[k] = f.UnusedReason(k), f.Caveat(k)
		if c.Trial == config.TrialShort {
			p.Limits[k].Wall = shortWall
		}
		p.Gates[k] = f.promotionGates(k)
	}
	return p, nil
}

// promotionGates returns the gates of a kind's slot. A number of calls applies to kinds that decide for one request
// only.
func (f *Fleet) promotionGates(k abi.Kind) slothost.Gates {
	c := slothost.Gates{Patience: f.scaledGateTime(slothost.DefaultPatience)}
	c.Shadow = slothost.Gate{Calls: shadowCalls, Soak: f.scaledGateTime(slothost.DefaultShadowSoak)}
	c.Canary = slothost.Gate{Calls: canaryCalls, Soak: f.scaledGateTime(slothost.DefaultCanarySoak)}
	if f.Fleet.Policies.Trial == config.TrialShort {
		c.Ladder, c.Shadow = []int{shortStep}, slothost.Gate{Calls: shortCalls, Soak: -1}
		c.Canary = c.Shadow
	}
	if !lifecycle.Kind(k.String()).PerRequest() {
		c.Shadow.Calls, c.Canary.Calls = 0, 0
	}
	c.Canary = withComparisons(c.Canary)
	return c
}

// withComparisons returns a canary's gate that also requires comparisons with the
// policy in force for half of its calls: a busy host postpones comparisons.
func withComparisons(g slothost.Gate) slothost.Gate {
	g.Compared = max(1, g.Calls/2)
	return g
}

// plaintextMeaning says what each entry of tls.plaintext allows.
var plaintextMeaning = map[string]string{
	"clients":  "prompts travel from clients to proxies in plain text",
	"requests": "prompts travel from proxies to migrators in plain text, and migrators serve everyone who reaches them",
	"rdma":     "KV blocks, from which prompts can be computed, travel by RDMA unencrypted",
	"traces":   "spans of requests travel to the collector in plain text",
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
	for i, m := range f.Models {
		if m.History != "" && f.Planner.Adopt == config.AdoptIfNeeded {
			all = append(all, fmt.Sprintf("models[%d].history: planner.adopt is \"if-needed\": it has no effect while one stage is within its limits", i))
		}
	}
	if c := f.Fleet.Control; c.Socket == config.DefaultSocket && len(c.SocketUsers) == 0 {
		all = append(all, "control.socket: "+c.Socket+" admits the control plane's own user and root: name the users of migrators and proxies in control.socket_users")
	}
	for _, what := range f.Fleet.TLS.Plaintext {
		all = append(all, fmt.Sprintf("tls.plaintext: %s: %s; make sure that a mesh or the network protects it", what, plaintextMeaning[what]))
	}
	return all
}

// scaledGateTime returns a gate's duration at the fleet's speed.
func (f *Fleet) scaledGateTime(at1 policies.Micros) policies.Micros {
	return max(1, policies.Micros(f.scaled(time.Duration(at1)*time.Microsecond).Microseconds()))
}

// ReadKeys reads the public keys of a PEM file.
func ReadKeys(path string) ([]ed25519.PublicKey, error) {
	text, err := atomicfile.Read(path, maxKeyFile)
	if err != nil {
		return nil, err
	}
	keys, err := sign.ParsePublic(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

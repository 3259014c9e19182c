package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Policies configures policies that are WebAssembly modules: whose signatures
// count, the limits of a call, and the promotion gates. The file is the same for
// control planes and migrators; each reads the fields that it needs, so that only
// the hosts of control planes need the rules. Without keys no module is loaded,
// and the built-in policies decide.
type Policies struct {
	// Keys are PEM files with the public keys of those who may sign modules;
	// "cascade policy keygen" creates them.
	Keys []string `yaml:"keys,omitempty"`
	// Threshold is how many different keys must have signed a module, 1 to 16.
	Threshold int `yaml:"threshold,omitempty" default:"1" unit:"keys"`
	// Fleet is the name of this fleet in signatures: a module that was signed for
	// another one is refused. Fleets that trust the same keys need different names.
	Fleet string `yaml:"fleet,omitempty" default:"tls.trust_domain, or else \"default\""`
	// Native switches all modules off, whatever else is configured: the built-in
	// policies decide as soon as a process restarts.
	Native bool `yaml:"native,omitempty"`
	// Cache is a directory for machine code, so that a module is compiled once per
	// host and not at every start. Only the process's user may have write access to
	// it.
	Cache string `yaml:"cache,omitempty"`
	// Marks is a directory on each host in which processes keep the newest statement
	// that each slot admitted, so that no older module can return after a restart.
	// Without it and without a directory as state, processes forget the statements when they end.
	Marks string `yaml:"marks,omitempty" default:"marks in state"`
	// Rules are files and directories of the site's rules in Rego, about plans
	// (package cascade.plan) and about the promotion of modules (package
	// cascade.slot). Control planes read them. Without them only the built-in
	// invariants hold.
	Rules []string `yaml:"rules,omitempty"`
	// Data is a JSON file that the rules see as data.
	Data string `yaml:"data,omitempty"`
	// Gates are what a module must pass to be promoted.
	Gates Gates `yaml:"gates,omitempty"`
	// Limits are the limits of a call, by kind: partition, refine, bid-quote,
	// bid-select, outlier, place or guard. "cascade policy inspect" prints the
	// defaults.
	Limits map[string]CallLimit `yaml:"limits,omitempty"`
}

// Gates are the promotion gates of all slots, with the exceptions in Kinds.
type Gates struct {
	// Shadow is passed before the canary: the module answers recorded calls, and its
	// answers are not used.
	Shadow Gate `yaml:"shadow,omitempty"`
	// Canary is passed after each step of the canary.
	Canary Gate `yaml:"canary,omitempty"`
	// Ladder is the steps of a canary, in 1/1000 of the requests, increasing.
	Ladder []int `yaml:"ladder,omitempty" default:"[1, 10, 100]"`
	// Kinds are gates of single kinds. Fields that are missing here have the values
	// above.
	Kinds map[string]KindGates `yaml:"kinds,omitempty"`
}

// KindGates are the promotion gates of one kind.
type KindGates struct {
	// Shadow is the gate before the canary.
	Shadow Gate `yaml:"shadow,omitempty"`
	// Canary is the gate after each step of the canary.
	Canary Gate `yaml:"canary,omitempty"`
}

// Gate is what a module must do to be promoted.
type Gate struct {
	// Calls is how many calls the module must have answered on a host. Kinds that
	// decide for many requests at once (partition, refine, guard) are called every
	// few seconds: they must have answered 1, and only gates.kinds asks them for
	// more.
	Calls uint64 `yaml:"calls,omitempty" default:"200 in shadow, 20 in each step of the canary"`
	// Soak is the shortest time that the phase lasts; below 0 is none. It is divided
	// by speed.
	Soak time.Duration `yaml:"soak,omitempty" default:"10s in shadow, 30s in canary"`
	// Worse is how many of 1000 answers may be worse than those of the policy in
	// force, by the host's own measure; −1 allows none. A module with more stays in
	// shadow, and fails there if a canary was to follow. The share is taken of at
	// least 64 answers, or of calls; a module with more worse answers than that
	// share allows does not wait for the others.
	Worse int `yaml:"worse,omitempty" default:"20; 50 for partition, refine and guard"`
}

// CallLimit bounds the calls of one kind.
type CallLimit struct {
	// Fuel is how many ticks a call may use: loop rounds and function calls.
	Fuel int64 `yaml:"fuel,omitempty" unit:"ticks" default:"the kind's"`
	// Wall ends a call whose ticks take long.
	Wall time.Duration `yaml:"wall,omitempty" default:"the kind's"`
	// Pages is the most memory of an instance, in pages of 64 KiB.
	Pages uint32 `yaml:"pages,omitempty" unit:"pages of 64 KiB" default:"the kind's"`
}

// Bounds of what a fleet file may configure.
const (
	maxGateSoak  = 24 * time.Hour
	maxCalls     = 1 << 30
	maxFuel      = 1 << 40
	maxWall      = time.Minute
	maxPages     = 65_536
	maxSlotKeys  = 64
	maxThreshold = sign.MaxSignatures
)

// policyKinds returns the names of the policy kinds in the order of their numbers.
func policyKinds() []string {
	var names []string
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		names = append(names, k.String())
	}
	return names
}

// ModulesEnabled reports whether modules may decide in this fleet.
func (p Policies) ModulesEnabled() bool { return len(p.Keys) > 0 && !p.Native }

// MarksWarning returns why processes of this fleet forget, when they end, which
// statements they have admitted. It is "" where they do not, or admit no module.
func (f *Fleet) MarksWarning() string {
	if !f.Policies.ModulesEnabled() || f.Policies.Marks != "" || f.State != "" && !f.RemoteState() {
		return ""
	}
	return "policies.marks: set a directory, or a directory as state: without either, a process that restarts admits modules again that newer ones have replaced"
}

func (p *Policies) setDefaults() {
	if len(p.Keys) > 0 {
		setDefault(&p.Threshold, 1)
	}
}

func (p Policies) validate(c *checker) {
	for i, k := range p.Keys {
		if k == "" || slices.Contains(p.Keys[:i], k) {
			c.fail(fmt.Sprintf("policies.keys[%d]", i), "%q: name each PEM file once", k)
		}
	}
	switch {
	case len(p.Keys) > maxSlotKeys:
		c.fail("policies.keys", "%d files exceed the limit of %d", len(p.Keys), maxSlotKeys)
	case len(p.Keys) == 0 && p.Threshold != 0:
		c.fail("policies.threshold", "there are no keys; name the files of the public keys in policies.keys")
	case len(p.Keys) > 0:
		checkRange(c, "policies.threshold", p.Threshold, 1, maxThreshold)
	}
	if p.Fleet != "" {
		if err := sign.CheckFleet(p.Fleet); err != nil {
			c.fail("policies.fleet", "%v", err)
		}
	}
	for i, r := range p.Rules {
		if r == "" {
			c.fail(fmt.Sprintf("policies.rules[%d]", i), "name a file or a directory")
		}
	}
	if p.Data != "" && len(p.Rules) == 0 {
		c.fail("policies.data", "there are no rules that could use the data; name them in policies.rules")
	}
	p.Gates.Shadow.validate(c, "policies.gates.shadow")
	p.Gates.Canary.validate(c, "policies.gates.canary")
	for i, step := range p.Gates.Ladder {
		if step < 1 || step > 999 || i > 0 && step <= p.Gates.Ladder[i-1] {
			c.fail(fmt.Sprintf("policies.gates.ladder[%d]", i), "%d: steps must increase, from at least 1 to at most 999", step)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(p.Gates.Kinds)) {
		if !lifecycle.Kind(kind).Known() {
			c.fail("policies.gates.kinds", "%q is not a policy kind; use %s", kind, strings.Join(policyKinds(), ", "))
			continue
		}
		p.Gates.Kinds[kind].Shadow.validate(c, "policies.gates.kinds."+kind+".shadow")
		p.Gates.Kinds[kind].Canary.validate(c, "policies.gates.kinds."+kind+".canary")
	}
	for _, kind := range slices.Sorted(maps.Keys(p.Limits)) {
		at, l := "policies.limits."+kind, p.Limits[kind]
		if !lifecycle.Kind(kind).Known() {
			c.fail("policies.limits", "%q is not a policy kind; use %s", kind, strings.Join(policyKinds(), ", "))
			continue
		}
		checkRange(c, at+".fuel", int(l.Fuel), 0, maxFuel)
		checkRange(c, at+".wall", l.Wall, 0, maxWall)
		checkRange(c, at+".pages", int(l.Pages), 0, maxPages)
	}
}

func (g Gate) validate(c *checker, at string) {
	checkRange(c, at+".calls", int(min(g.Calls, maxCalls+1)), 0, maxCalls)
	if g.Soak > 0 {
		checkRange(c, at+".soak", g.Soak, 0, maxGateSoak)
	}
	checkRange(c, at+".worse", g.Worse, -1, 1000)
}

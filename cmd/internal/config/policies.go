package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Policies says whose modules in WebAssembly may decide in this fleet, within
// what limits, and what they have to show first. The file is the same for the
// control planes and the migrators; each reads of it what it needs, so that only
// the control planes' machines must have the rules. Without keys no module is
// loaded, and the built-in policies decide.
type Policies struct {
	// Keys are PEM files with the public keys of those who may sign modules;
	// "cascade policy keygen" makes them.
	Keys []string `yaml:"keys,omitempty"`
	// Threshold is how many different keys must have signed. 0 means 1.
	Threshold int `yaml:"threshold,omitempty"`
	// Native switches all modules off, whatever else is here: the built-in policies
	// decide, at once after a restart.
	Native bool `yaml:"native,omitempty"`
	// Cache is a folder for machine code, so that a module is compiled once per
	// machine and not at every start. Nobody but the own user may be able to write
	// to it. Empty: none.
	Cache string `yaml:"cache,omitempty"`
	// CacheMiB and CacheModules bound the cache: beyond, what was loaded longest ago
	// goes. A module in Go takes some 8 MiB. 0 means 512 MiB and 64 modules.
	CacheMiB     int `yaml:"cache_mib,omitempty"`
	CacheModules int `yaml:"cache_modules,omitempty"`
	// Instances is how many calls can be in one module at once, where it decides with
	// every request; further ones wait, a microsecond or two. Each takes some 2 MiB of
	// a module in Go. 0 means one for each replica in the process and one more, so 2
	// in a migrator of its own, and no more than there are processors.
	Instances int `yaml:"instances,omitempty"`
	// Marks is a folder of each machine where its processes remember the newest
	// statement that each slot admitted, so that after a restart, too, nobody brings
	// back an old module. Empty: marks in State; without one they forget it when they
	// end.
	Marks string `yaml:"marks,omitempty"`
	// Modules is the folder in which the control planes keep the modules that were
	// pushed; they share it like State. Empty: modules in State, memory without one.
	Modules string `yaml:"modules,omitempty"`
	// Rules are files and folders of the site's rules in Rego, about plans
	// (package cascade.plan) and about the way of modules (package cascade.slot).
	// Read by the control planes. Empty: only the built-in invariants hold.
	Rules []string `yaml:"rules,omitempty"`
	// Data is a JSON file that the rules find under data. Empty: nothing.
	Data string `yaml:"data,omitempty"`
	// Gates are what a module has to show on its way up.
	Gates Gates `yaml:"gates,omitempty"`
	// Limits are the limits of a call, by kind: partition, refine, bid-quote,
	// bid-select, outlier, place or guard. What is not here has its default.
	Limits map[string]CallLimit `yaml:"limits,omitempty"`
}

// Gates are the same for all slots, but for what Kinds says.
type Gates struct {
	Shadow Gate `yaml:"shadow,omitempty"` // before the canary: recorded calls, nobody hears the answers
	Canary Gate `yaml:"canary,omitempty"` // behind each step of the canary
	// Ladder is the steps of a canary, in 1/1000 of the requests, growing. Empty
	// means 1, 10 and 100.
	Ladder []int `yaml:"ladder,omitempty"`
	// Patience is how long a step of a canary waits for its calls: then a module that
	// has answered some goes on to the next one, unless it is the last. It is also how
	// long worse answers wait to be judged of 64: where the missing ones would take as
	// long again, two worse ones, and not a single one, are enough then. 0 means 2m,
	// below 0 for ever in both. Divided by Speed.
	Patience time.Duration `yaml:"patience,omitempty"`
	// Faults within Window take a module back that is in force; one fault is enough
	// in canary. 0 means 3 and 10s.
	Faults int           `yaml:"faults,omitempty"`
	Window time.Duration `yaml:"window,omitempty"`
	// Kinds are the gates of some slots, by kind. What is not here, or 0, is as above.
	Kinds map[string]KindGates `yaml:"kinds,omitempty"`
}

// KindGates are the gates of one kind.
type KindGates struct {
	Shadow Gate `yaml:"shadow,omitempty"`
	Canary Gate `yaml:"canary,omitempty"`
}

// Gate is what a module has to show to go on.
type Gate struct {
	// Calls it has answered on a host, at least. 0 means 200 in shadow and 20 in each
	// step of the canary. Kinds that decide for many requests at once (partition,
	// refine, guard) are called every few seconds: for them 0 means 1, that they have
	// been called at all, and only what Gates.Kinds says asks for more.
	Calls uint64 `yaml:"calls,omitempty"`
	// Soak is how long the stage lasts, at least. 0 means 10s in shadow and 30s in
	// canary, below 0 not at all. Divided by Speed.
	Soak time.Duration `yaml:"soak,omitempty"`
	// Worse is how many of 1000 answers may be worse than those of the policy in
	// force, by the host's own measure; in shadow more keep it there, and end it if it
	// was to go further. The share is that of 64 answers, or Calls, at least; more worse
	// ones than these may have need not wait for the others. See also Gates.Patience.
	// 0 means 20, and 50 for kinds that decide for many requests at once; −1 none.
	Worse int `yaml:"worse,omitempty"`
}

// CallLimit bounds the calls of one kind. 0 is the kind's default.
type CallLimit struct {
	Fuel  int64         `yaml:"fuel,omitempty"`  // ticks: loop rounds and function calls
	Wall  time.Duration `yaml:"wall,omitempty"`  // ends code that makes ticks slow
	Pages uint32        `yaml:"pages,omitempty"` // memory, in pages of 64 KiB
}

// Bounds of what a fleet file may ask of its modules.
const (
	maxSoak      = 24 * time.Hour
	maxCalls     = 1 << 30
	maxFaults    = 1024 // slot.MaxFaults
	maxFuel      = 1 << 40
	maxWall      = time.Minute
	maxPages     = 65_536
	maxSlotKeys  = 64
	maxCacheMiB  = 1 << 20
	maxCached    = 1 << 16
	maxInstances = 1024 // of wasm/policy
	maxThreshold = sign.MaxSignatures
)

// PolicyKinds are the names of what policies decide, in the order of their numbers.
func PolicyKinds() []string {
	var names []string
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		names = append(names, k.String())
	}
	return names
}

// ModulesEnabled reports whether modules may decide in this fleet.
func (p Policies) ModulesEnabled() bool { return len(p.Keys) > 0 && !p.Native }

// MarksWarning says why processes of this fleet forget, when they end, which statements
// they have admitted; "" where they do not, or no module is admitted.
func (f *Fleet) MarksWarning() string {
	if !f.Policies.ModulesEnabled() || f.Policies.Marks != "" || f.State != "" {
		return ""
	}
	return "policies.marks: name a folder, or one for state: without them a process that restarts admits modules again that newer ones have replaced"
}

func (p *Policies) setDefaults() {
	if len(p.Keys) > 0 {
		setDefault(&p.Threshold, 1)
	}
}

func (p Policies) validate(c *checker) {
	for i, k := range p.Keys {
		if k == "" || slices.Contains(p.Keys[:i], k) {
			c.fail(fmt.Sprintf("policies.keys[%d]", i), "name a PEM file that is not there twice")
		}
	}
	switch {
	case len(p.Keys) > maxSlotKeys:
		c.fail("policies.keys", "%d files, at most %d", len(p.Keys), maxSlotKeys)
	case len(p.Keys) == 0 && p.Threshold != 0:
		c.fail("policies.threshold", "signatures need keys; name the files of the public keys in policies.keys")
	case len(p.Keys) > 0:
		checkRange(c, "policies.threshold", p.Threshold, 1, maxThreshold)
	}
	for i, r := range p.Rules {
		if r == "" {
			c.fail(fmt.Sprintf("policies.rules[%d]", i), "name a file or a folder")
		}
	}
	if p.Data != "" && len(p.Rules) == 0 {
		c.fail("policies.data", "data are for rules; name them in policies.rules")
	}
	checkRange(c, "policies.cache_mib", p.CacheMiB, 0, maxCacheMiB)
	checkRange(c, "policies.instances", p.Instances, 0, maxInstances)
	checkRange(c, "policies.cache_modules", p.CacheModules, 0, maxCached)
	p.Gates.Shadow.validate(c, "policies.gates.shadow")
	p.Gates.Canary.validate(c, "policies.gates.canary")
	for i, step := range p.Gates.Ladder {
		if step < 1 || step > 999 || i > 0 && step <= p.Gates.Ladder[i-1] {
			c.fail(fmt.Sprintf("policies.gates.ladder[%d]", i), "%d: steps grow from 1 to at most 999", step)
		}
	}
	checkRange(c, "policies.gates.patience", max(p.Gates.Patience, 0), 0, maxSoak)
	for _, kind := range slices.Sorted(maps.Keys(p.Gates.Kinds)) {
		if !slices.Contains(PolicyKinds(), kind) {
			c.fail("policies.gates.kinds", "%q decides nothing: use %s", kind, strings.Join(PolicyKinds(), ", "))
			continue
		}
		p.Gates.Kinds[kind].Shadow.validate(c, "policies.gates.kinds."+kind+".shadow")
		p.Gates.Kinds[kind].Canary.validate(c, "policies.gates.kinds."+kind+".canary")
	}
	checkRange(c, "policies.gates.faults", p.Gates.Faults, 0, maxFaults)
	checkRange(c, "policies.gates.window", p.Gates.Window, 0, maxSoak)
	for _, kind := range slices.Sorted(maps.Keys(p.Limits)) {
		at, l := "policies.limits."+kind, p.Limits[kind]
		if !slices.Contains(PolicyKinds(), kind) {
			c.fail("policies.limits", "%q decides nothing: use %s", kind, strings.Join(PolicyKinds(), ", "))
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
		checkRange(c, at+".soak", g.Soak, 0, maxSoak)
	}
	checkRange(c, at+".worse", g.Worse, -1, 1000)
}

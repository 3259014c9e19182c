package config

import (
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Policies configures policies that are WebAssembly modules: whose signatures
// count, and how they are tried. The file is the same for
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
	// Native switches all modules off, whatever else is configured. "cascade up --native" sets it; in the file,
	// remove Keys.
	Native bool `yaml:"-"`
	// Directory is a directory on each host, to which only the processes' user may have write access. It keeps
	// machine code, so that a module is compiled once per host, and the newest statement that each slot admitted,
	// so that no older module can return after a restart. Without it a directory as state keeps the statements;
	// without either, processes forget them when they end.
	Directory string `yaml:"directory,omitempty"`
	// Rules are files and directories of the site's rules in Rego, about plans
	// (package cascade.plan) and about the promotion of modules (package
	// cascade.slot), and at most one JSON file, which the rules see as data. Control
	// planes compile them to a module; functions that it cannot have, such as
	// sprintf, are refused. Without them only the built-in invariants hold.
	Rules []string `yaml:"rules,omitempty"`
	// Trial is how long a module is tried before it decides everywhere: "full", or "short" for fleets with few
	// requests, such as staging, where it would take days. "short" is 5 recorded calls, and 5 calls in a canary of
	// half of the requests, without a least time; a call may take 30 s, as such hosts are busy with many processes.
	Trial string `yaml:"trial,omitempty"`
}

// The values of Policies.Trial.
const (
	TrialFull  = "full"
	TrialShort = "short"
)

// Bounds of what a fleet file may configure.
const (
	maxSlotKeys  = 64
	maxThreshold = sign.MaxSignatures
)

// ModulesEnabled reports whether modules may decide in this fleet.
func (p Policies) ModulesEnabled() bool { return len(p.Keys) > 0 && !p.Native }

// MarksWarning returns why processes of this fleet forget, when they end, which
// statements they have admitted. It is "" where they do not, or admit no module.
func (f *Fleet) MarksWarning() string {
	if !f.Policies.ModulesEnabled() || f.Policies.Directory != "" || f.State != "" && !f.RemoteState() {
		return ""
	}
	return "policies.directory: set one, or a directory as state: without either, a process that restarts admits modules again that newer ones have replaced"
}

func (p *Policies) setDefaults() {
	setDefault(&p.Trial, TrialFull)
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
	checkOneOf(c, "policies.trial", p.Trial, TrialFull, TrialShort)
}

package wiring

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	// maxKeyFile and maxSiteFile bound what is read at start.
	maxKeyFile  = 64 << 10
	maxSiteFile = 1 << 20
	// recordEvery is which share of the calls is kept for those that are tried later: all,
	// because a replica has a few of them a second, and less than that of bids.
	recordEvery = 1
	// shadowCalls and canaryCalls are what gates ask for unless the fleet file says
	// otherwise, of kinds that decide for one request. A replica that begins ten
	// requests a second has those of its places in 20 s, and those of a canary in some
	// minutes, because it does not wait for them in steps that are too small for it
	// (promotion.Config.Patience); the defaults of package slot are for a hundred times that.
	shadowCalls, canaryCalls = 200, 20
)

// Policies is what one process needs of the fleet's modules.
type Policies struct {
	Ring   sign.Ring
	Limits [abi.NumKinds]host.Limit
	Gates  [abi.NumKinds]promotion.Config
	Cache  string // folder of machine code; "" for none
	// CacheBytes and CacheModules bound it; 0 is the host's default.
	CacheBytes   int64
	CacheModules int
	Instances    int    // calls in one module at a time
	MarksFile    string // where the process keeps its slots' marks; "" for nowhere
	MarksWarning string // why it keeps them nowhere, though it should; "" where it does
	RecordEvery  int    // every nth call is recorded
	// UnusedReason says why nothing asks a kind; see Fleet.Idle.
	UnusedReason [abi.NumKinds]string
}

// ModulesEnabled reports whether modules may decide in this fleet.
func (f *Fleet) ModulesEnabled() bool {
	return !f.Fleet.Policies.Native && (f.Fleet.Policies.ModulesEnabled() || len(f.Trusted) > 0)
}

// Policies reads whom the component trusts and translates the limits. It is for
// fleets that have Modules. As many replicas share the component's modules; 0
// means 1.
func (f *Fleet) Policies(role identity.Role, name string, replicas int) (Policies, error) {
	c := f.Fleet.Policies
	p := Policies{Cache: f.resolvePath(c.Cache), CacheBytes: int64(c.CacheMiB) << 20, CacheModules: c.CacheModules, RecordEvery: recordEvery}
	if p.Instances = c.Instances; p.Instances == 0 {
		p.Instances = min(max(replicas, 1)+1, runtime.GOMAXPROCS(0))
	}
	ring, bad := f.keyRing()
	if len(bad) > 0 {
		return p, bad[0]
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
			Kind: k, Ladder: c.Gates.Ladder, Patience: f.scaledGateTime(c.Gates.Patience, promotion.DefaultPatience),
			Shadow: f.promotionGate(k, own.Shadow, c.Gates.Shadow, config.Gate{Calls: shadowCalls}, promotion.DefaultShadowSoak),
			Canary: withComparisons(f.promotionGate(k, own.Canary, c.Gates.Canary, config.Gate{Calls: canaryCalls}, promotion.DefaultCanarySoak)),
			Faults: c.Gates.Faults, Window: policies.Micros(c.Gates.Window.Microseconds()),
		}
	}
	return p, nil
}

// setMarksFile finds where a process keeps its slots' marks, in a file of that name. One
// that cannot have the default's folder, such as a migrator whose machine has no
// state, goes without.
func (f *Fleet) setMarksFile(p *Policies, name string) error {
	dir := f.resolvePath(f.Fleet.Policies.Marks)
	if dir == "" && f.State != "" {
		dir = filepath.Join(f.StateDir(), "marks")
	}
	if dir == "" {
		p.MarksWarning = f.Fleet.MarksWarning()
		return nil
	}
	switch err := os.MkdirAll(dir, 0o700); {
	case err != nil && f.Fleet.Policies.Marks != "":
		return fmt.Errorf("policies.marks: %w", err)
	case err != nil:
		p.MarksWarning = "policies.marks: name a folder of this machine: the one in state cannot be had: " + err.Error()
		return nil
	}
	p.MarksFile = filepath.Join(dir, name)
	removeStaleMarks(p.MarksFile, time.Now().Add(-staleMarksAge))
	return nil
}

// staleMarksAge is how old what a process that was ended left of a new file is when it
// is removed.
const staleMarksAge = time.Hour

// removeStaleMarks removes it. What cannot be removed is in nobody's way.
func removeStaleMarks(file string, before time.Time) {
	entries, _ := os.ReadDir(filepath.Dir(file))
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(file)+"-")
		if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
}

// promotionGate is a gate of a kind's slot: what the file says of the kind, else what it says of
// all, else the default. A number of calls for all is one of kinds that decide for one
// request; Fleet.Warnings tells of the others.
func (f *Fleet) promotionGate(k abi.Kind, own, all, otherwise config.Gate, soak policies.Micros) promotion.Gate {
	if !promotion.PerRequest(k) {
		all.Calls, otherwise.Calls = 0, 0
	}
	return promotion.Gate{
		Calls: cmp.Or(own.Calls, all.Calls, otherwise.Calls), Soak: f.scaledGateTime(cmp.Or(own.Soak, all.Soak), soak), Worse: cmp.Or(own.Worse, all.Worse),
	}
}

// withComparisons is a gate of a canary: what is decided there is decided again, and half of
// the calls that it asks for have been when it is passed. A busy machine puts that off.
func withComparisons(g promotion.Gate) promotion.Gate {
	g.Compared = max(1, g.Calls/2)
	return g
}

// Warnings says what is right in the fleet file and may be meant otherwise, with what
// to do about it.
func (f *Fleet) Warnings() (all []string) {
	if why := f.Fleet.MarksWarning(); why != "" {
		all = append(all, why)
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
			if !promotion.PerRequest(k) && stage.own(g.Kinds[k.String()]).Calls == 0 {
				one = append(one, k.String())
			}
		}
		if stage.all.Calls > 1 && len(one) > 0 {
			all = append(all, fmt.Sprintf("policies.gates.%s.calls: %d are asked of kinds that decide for one request; of %s, which are called every few seconds, 1 is: "+
				"for more set policies.gates.kinds.%s.%s.calls", stage.name, stage.all.Calls, strings.Join(one, ", "), one[0], stage.name))
		}
	}
	return all
}

// scaledGateTime is a time of gates on the fleet's clock: d, or what there is otherwise; −1
// for what the file has below 0.
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
	text, err := readSmall(path, maxKeyFile)
	if err != nil {
		return nil, err
	}
	keys, err := sign.ParsePublic(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// RegoRules is the site's own rules and what they compare with.
type RegoRules struct {
	Files map[string]string // texts in Rego, by path
	Data  map[string]any
}

// RegoRules reads the rules; none where the fleet has none.
func (f *Fleet) RegoRules() (RegoRules, error) {
	s := RegoRules{Files: map[string]string{}}
	for i, name := range f.Fleet.Policies.Rules {
		if err := s.read(f.resolvePath(name)); err != nil {
			return s, fmt.Errorf("policies.rules[%d]: %w", i, err)
		}
	}
	if name := f.Fleet.Policies.Data; name != "" {
		var err error
		if s.Data, err = readData(f.resolvePath(name)); err != nil {
			return s, fmt.Errorf("policies.data: %w", err)
		}
	}
	return s, nil
}

// read takes in a file, or what a folder has of files in Rego but for their
// tests.
func (s *RegoRules) read(path string) error {
	found := false
	err := filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if at != path && (!strings.HasSuffix(at, ".rego") || strings.HasSuffix(at, "_test.rego")) {
			return nil
		}
		text, err := readSmall(at, maxSiteFile)
		if err != nil {
			return err
		}
		s.Files[at], found = string(text), true
		return nil
	})
	if err == nil && !found {
		err = errors.New(path + ": no .rego file is there")
	}
	return err
}

// readSmall reads a file of bounded size.
func readSmall(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s: larger than %d KiB", path, most>>10)
	}
	return text, err
}

// NativePolicies are the policies that this fleet's preset has where no module decides,
// of the control plane and of a replica's market.
func (f *Fleet) NativePolicies(m market.Config) policy.Native {
	n := policy.Native{
		Partitioner: partition.Exact{}, Guard: allowAll{}, Refiner: m.Refiner,
		Quoter: m.Machine.Quoter, Selector: m.Machine.Selector, Detector: m.Detector, Placer: m.Placer,
	}
	if f.Preset == "paper" {
		n.Partitioner = partition.TwoPhase{Objective: partition.Snapshot}
	}
	if n.Refiner == nil {
		n.Refiner = f.builtinRefiner()
	}
	if n.Quoter == nil {
		n.Quoter = bidask.Backlog{}
	}
	if n.Selector == nil {
		n.Selector = bidask.LeastLoad{}
	}
	if n.Detector == nil {
		n.Detector = outlier.Detector{Percent: f.Migration.OutlierPercent, MinExcess: minExcess}
	}
	if n.Placer == nil {
		n.Placer = place.Policy{}
	}
	return n
}

// allowAll is the guard of a fleet without one: what Rego and the invariants say is
// said anyway.
type allowAll struct{}

// Guard implements policy.Guard.
func (allowAll) Guard(abi.Change) (abi.Denial, bool) { return abi.Denial{}, false }

// BuiltinModule is one of our own policies as a module of wasm/plugins.
type BuiltinModule struct {
	Name          string // of the file, without .wasm
	Kinds         []abi.Kind
	Configuration []byte // that makes it decide as Native does
}

// BuiltinModules are the modules that decide as Native does, a slot each for every kind
// that this fleet asks and that there is a module for.
func (f *Fleet) BuiltinModules() []BuiltinModule {
	of := func(name, settings string, kinds ...abi.Kind) BuiltinModule {
		return BuiltinModule{name, kinds, []byte(settings)}
	}
	part, bids, boundary := "partition-exact", "bid-least-load", "refine-weighted"
	if f.Preset == "paper" {
		part, boundary = "partition-paper", "refine-paper"
	}
	if f.Migration.Select == "paper" {
		bids = "bid-paper"
	}
	all := []BuiltinModule{
		of(part, "", abi.Partition), of(bids, "", abi.Quote, abi.Select),
		of("outlier", fmt.Sprintf("percent %d\nleast %d\n", f.Migration.OutlierPercent, minExcess), abi.Outlier), of("place", "", abi.Place),
		of(boundary, "", abi.Refine),
	}
	return slices.DeleteFunc(all, func(b BuiltinModule) bool { return f.UnusedReason(b.Kinds[0]) != "" })
}

// UnusedReason says why nothing in this fleet asks the policies of a kind, with what would
// have them asked; "" when something does.
func (f *Fleet) UnusedReason(k abi.Kind) string {
	switch {
	case k == abi.Partition && f.Preset == "round-robin":
		return "preset: round-robin has one stage, always"
	case k == abi.Partition, k == abi.Guard:
		return ""
	case !f.Migrates():
		return "no request of this fleet moves: migration.mode is off"
	case k == abi.Refine && !f.Refines():
		return `boundaries of this fleet move with plans alone: set planner.refine: "on" in the fleet file, and restart`
	}
	return ""
}

// ModulesDir is where the control planes keep the modules that were pushed, ""
// for memory.
func (f *Fleet) ModulesDir() string {
	if dir := f.Fleet.Policies.Modules; dir != "" {
		return f.resolvePath(dir)
	}
	if f.State == "" {
		return ""
	}
	return filepath.Join(f.StateDir(), "modules")
}

// StateDir is the folder of the fleet's state, "" for none.
func (f *Fleet) StateDir() string { return f.resolvePath(f.State) }

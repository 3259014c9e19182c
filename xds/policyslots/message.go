package policyslots

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/api"
)

// Runtime is the one that runs modules, as Envoy's proxies name theirs.
const Runtime = "cascade.wazero"

// MaxInline is the largest module that travels in the slot itself, in bytes;
// hosts fetch larger ones from the Modules service of their control plane.
const MaxInline = 256 << 10

// What a fetch of a module is called in the message. Hosts know their control
// planes: nobody resolves it.
const (
	fetchURI     = "grpc://control/cascade.policy.v1.Modules/Fetch"
	fetchCluster = "control"
	fetchTimeout = 30 * time.Second
)

// capabilities are all the calls that a module may make. Hosts have the list of
// their own, and go by that one; this one tells who reads the message.
var capabilities = [...]string{
	"log", "fail",
	"args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_time_get", "random_get",
	"fd_write", "poll_oneoff", "sched_yield", "proc_exit",
}

// The parts of a slot's resource name.
const (
	namePrefix = "cascade.policy."
	nameSuffix = ".v1"
)

// ResourceName is the name of the extension config that is a slot.
func ResourceName(kind string) string { return namePrefix + kind + nameSuffix }

// KindOf returns the kind of the slot that a resource is; ok is false for any
// other resource.
func KindOf(name string) (kind string, ok bool) {
	kind, pre := strings.CutPrefix(name, namePrefix)
	kind, post := strings.CutSuffix(kind, nameSuffix)
	return kind, pre && post && kind != ""
}

// Want is what a slot should run, as hosts are told.
//
// Invariants, which Decode establishes:
//  1. Kind is known, Candidates are at most two, ascending in generation; at most
//     one is proven, which is the first, and at most one is not,
//  2. every candidate has a goal that its kind can have, a statement, and either
//     the module's bytes, whose hash SHA256 is, or that hash alone,
//  3. RolledBack is ascending and names no candidate,
//  4. there is a Previous only beside a proven candidate.
type Want struct {
	Kind       string
	Candidates []Wanted
	RolledBack []Ended // Generation and Reason alone
	Previous   []byte  // the signature file of what a rollback of the proven one goes back to; nil: none
}

// Wanted is one generation of a Want.
type Wanted struct {
	Generation    uint64
	Goal          Goal // Warm to Active; of a proven one Active
	Permille      int
	Scope         string
	Proven        bool
	Name          string
	SHA256        Digest
	Signature     []byte
	Configuration []byte
	Module        []byte // nil: to be fetched
}

// Want is what hosts are told of the slot. code returns the bytes of a module of
// at most MaxInline bytes, or nil to have it fetched.
func (s Slot) Want(code func(Digest) []byte) Want {
	w := Want{Kind: s.Kind}
	add := func(t Trial, proven bool) {
		c := Wanted{
			Generation: t.Generation, Goal: t.Goal, Permille: t.Permille, Scope: t.Scope, Proven: proven, Name: t.Name,
			SHA256: t.SHA256, Signature: t.Signature, Configuration: t.Configuration,
		}
		if t.Size <= MaxInline {
			c.Module = code(t.SHA256)
		}
		w.Candidates = append(w.Candidates, c)
	}
	if s.Proven != nil {
		add(Trial{Module: *s.Proven, Goal: Active}, true)
	}
	if s.Previous != nil {
		w.Previous = s.Previous.Signature
	}
	if s.Candidate != nil {
		add(*s.Candidate, false)
	}
	for _, e := range s.Ended {
		w.RolledBack = append(w.RolledBack, Ended{Generation: e.Generation, Reason: e.Reason})
	}
	return w
}

// deterministic is the only way in which this package marshals: equal slots are
// equal bytes, and no host is sent what it has.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Message is the Want as it travels.
func (w Want) Message() (*api.PolicySlot, error) {
	m := &api.PolicySlot{Kind: w.Kind, Previous: w.Previous}
	for i, c := range w.Candidates {
		plugin, err := c.plugin()
		if err != nil {
			return nil, fmt.Errorf("candidates[%d].plugin: %w", i, err)
		}
		m.Candidates = append(m.Candidates, &api.Candidate{
			Generation: c.Generation, Statement: c.Signature, Plugin: plugin, Goal: string(c.Goal),
			Permille: uint32(c.Permille), Scope: c.Scope, Stable: c.Proven,
		})
	}
	for _, e := range w.RolledBack {
		m.RolledBack = append(m.RolledBack, &api.RolledBack{Generation: e.Generation, Reason: e.Reason})
	}
	return m, nil
}

// plugin is the module in Envoy's words.
func (c Wanted) plugin() (*anypb.Any, error) {
	allowed := make(map[string]*wasmv3.SanitizationConfig, len(capabilities))
	for _, name := range capabilities {
		allowed[name] = new(wasmv3.SanitizationConfig)
	}
	p := &wasmv3.PluginConfig{
		Name: c.Name,
		// The native policy answers what a module does not.
		FailurePolicy: wasmv3.FailurePolicy_FAIL_OPEN,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			Runtime: Runtime, Code: c.code(),
			CapabilityRestrictionConfig: &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: allowed},
		}},
	}
	if len(c.Configuration) > 0 {
		p.Configuration = new(anypb.Any)
		if err := anypb.MarshalFrom(p.Configuration, wrapperspb.Bytes(c.Configuration), deterministic); err != nil {
			return nil, err
		}
	}
	out := new(anypb.Any)
	return out, anypb.MarshalFrom(out, p, deterministic)
}

// code is where the bytes of the module are.
func (c Wanted) code() *corev3.AsyncDataSource {
	if c.Module != nil {
		return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
			Local: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: c.Module}},
		}}
	}
	return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		HttpUri: &corev3.HttpUri{
			Uri: fetchURI, Timeout: durationpb.New(fetchTimeout),
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: fetchCluster},
		},
		Sha256: c.SHA256.String(),
	}}}
}

// DecodeResource reads a slot out of the extension config of a name. The error
// names the field.
func DecodeResource(name string, typed *anypb.Any) (Want, error) {
	kind, ok := KindOf(name)
	if !ok {
		return Want{}, fmt.Errorf("%.80q is no policy slot", name)
	}
	m := new(api.PolicySlot)
	if err := typed.UnmarshalTo(m); err != nil {
		return Want{}, fmt.Errorf("typed_config: %w", err)
	}
	if m.GetKind() != kind {
		return Want{}, fmt.Errorf("kind: is %.40q, in the slot of %s", m.GetKind(), kind)
	}
	return Decode(m)
}

// Decode reads a message. The error names the field. The Want shares the
// message's bytes.
func Decode(m *api.PolicySlot) (Want, error) {
	w := Want{Kind: m.GetKind()}
	switch {
	case !Known(w.Kind):
		return Want{}, fmt.Errorf("kind: %.40q is not known here; there are %s", w.Kind, strings.Join(Kinds(), ", "))
	case len(m.GetCandidates()) > 2:
		return Want{}, fmt.Errorf("candidates: %d; there is one that is proven, and one on trial", len(m.GetCandidates()))
	case len(m.GetRolledBack()) > MaxEnded:
		return Want{}, fmt.Errorf("rolled_back: more than %d", MaxEnded)
	}
	last := uint64(0)
	for i, r := range m.GetRolledBack() {
		if r.GetGeneration() <= last {
			return Want{}, fmt.Errorf("rolled_back[%d].generation: %d after %d: they ascend from 1", i, r.GetGeneration(), last)
		}
		last = r.GetGeneration()
		if !fits(r.GetReason(), MaxReason) {
			return Want{}, fmt.Errorf("rolled_back[%d].reason: want a printable text of at most %d bytes", i, MaxReason)
		}
		w.RolledBack = append(w.RolledBack, Ended{Generation: last, Reason: r.GetReason()})
	}
	last = 0
	for i, c := range m.GetCandidates() {
		at := fmt.Sprintf("candidates[%d]", i)
		out, err := decodeCandidate(w.Kind, c)
		if err != nil {
			return Want{}, fmt.Errorf("%s.%w", at, err)
		}
		_, ended := slices.BinarySearchFunc(w.RolledBack, out.Generation, func(e Ended, g uint64) int { return cmp.Compare(e.Generation, g) })
		switch {
		case out.Generation <= last:
			return Want{}, fmt.Errorf("%s.generation: %d after %d: they ascend from 1", at, out.Generation, last)
		case ended:
			return Want{}, fmt.Errorf("%s.generation: %d was rolled back", at, out.Generation)
		case i > 0 && out.Proven:
			return Want{}, fmt.Errorf("%s.stable: only the first one may be", at)
		case i > 0 && !w.Candidates[0].Proven:
			return Want{}, fmt.Errorf("%s: one is on trial already", at)
		}
		last = out.Generation
		w.Candidates = append(w.Candidates, out)
	}
	if p := m.GetPrevious(); len(p) > 0 {
		if len(p) > MaxSignature || len(w.Candidates) == 0 || !w.Candidates[0].Proven {
			return Want{}, fmt.Errorf("previous: %d bytes, want at most %d, beside a proven candidate", len(p), MaxSignature)
		}
		w.Previous = p
	}
	return w, nil
}

// decodeCandidate reads one candidate. The error begins with the field.
func decodeCandidate(kind string, m *api.Candidate) (Wanted, error) {
	c := Wanted{
		Generation: m.GetGeneration(), Goal: Goal(m.GetGoal()), Permille: int(min(m.GetPermille(), Permilles)), Scope: m.GetScope(),
		Proven: m.GetStable(), Signature: m.GetStatement(),
	}
	switch {
	case c.Goal == Proven:
		return c, fmt.Errorf("goal: %q is told by the field proven", Proven)
	case c.Proven && (c.Goal != Active || c.Permille != 0 || c.Scope != ""):
		return c, fmt.Errorf("stable: its goal is %s, of all", Active)
	case len(c.Signature) == 0 || len(c.Signature) > MaxSignature:
		return c, fmt.Errorf("statement: %d bytes, want 1 to %d", len(c.Signature), MaxSignature)
	}
	if !c.Proven {
		if err := CheckGoal(kind, c.Goal, c.Permille, c.Scope); err != nil {
			return c, err // which begins with the field
		}
	}
	p := new(wasmv3.PluginConfig)
	if err := m.GetPlugin().UnmarshalTo(p); err != nil {
		return c, fmt.Errorf("plugin: %w", err)
	}
	if err := c.readPlugin(p); err != nil {
		return c, fmt.Errorf("plugin.%w", err)
	}
	return c, nil
}

func (c *Wanted) readPlugin(p *wasmv3.PluginConfig) error {
	c.Name = p.GetName()
	vm := p.GetVmConfig()
	switch {
	case c.Name == "" || !fits(c.Name, MaxName):
		return fmt.Errorf("name: want a printable text of 1 to %d bytes", MaxName)
	case vm.GetRuntime() != Runtime:
		return fmt.Errorf("vm_config.runtime: %.40q; this host has %q", vm.GetRuntime(), Runtime)
	case vm.GetAllowPrecompiled():
		return errors.New("vm_config.allow_precompiled: nobody checks precompiled code")
	}
	if a := p.GetConfiguration(); a != nil {
		b := new(wrapperspb.BytesValue)
		if err := a.UnmarshalTo(b); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if len(b.GetValue()) > MaxConfiguration {
			return fmt.Errorf("configuration: %d bytes, want at most %d", len(b.GetValue()), MaxConfiguration)
		}
		if len(b.GetValue()) > 0 {
			c.Configuration = b.GetValue()
		}
	}
	code := vm.GetCode()
	if remote := code.GetRemote(); remote != nil {
		sum, err := hex.DecodeString(remote.GetSha256())
		if err != nil || len(sum) != len(c.SHA256) || remote.GetSha256() != strings.ToLower(remote.GetSha256()) {
			return fmt.Errorf("vm_config.code.remote.sha256: want %d digits", 2*len(c.SHA256))
		}
		copy(c.SHA256[:], sum)
		return nil
	}
	c.Module = code.GetLocal().GetInlineBytes()
	if n := len(c.Module); n == 0 || n > MaxInline {
		return fmt.Errorf("vm_config.code.local.inline_bytes: %d bytes, want 1 to %d, or remote code", n, MaxInline)
	}
	c.SHA256 = sha256.Sum256(c.Module)
	return nil
}

package policyslots

import (
	"cmp"
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

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Runtime names the runtime of modules, as Envoy's VmConfig.runtime does.
const Runtime = "cascade.wazero"

// MaxInline is the largest module that the slot's message contains, in bytes; hosts
// fetch larger ones from the Modules service of their control plane.
const MaxInline = 256 << 10

// Where the message says a module comes from. Hosts know their control planes and do
// not resolve it.
const (
	fetchURI     = "grpc://control/cascade.policy.v1.Modules/Fetch"
	fetchCluster = "control"
	fetchTimeout = 30 * time.Second
)

// capabilities are all the calls that a module may make. They are for readers of
// the message: hosts apply their own list.
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

// ResourceName returns the name of the extension config of a slot.
func ResourceName(k lifecycle.Kind) string { return namePrefix + string(k) + nameSuffix }

// KindOf returns the kind of the slot that a resource configures; ok is false for
// any other resource.
func KindOf(name string) (k lifecycle.Kind, ok bool) {
	kind, pre := strings.CutPrefix(name, namePrefix)
	kind, post := strings.CutSuffix(kind, nameSuffix)
	return lifecycle.Kind(kind), pre && post && kind != ""
}

// Spec returns the specification of the slot that is sent to hosts. code returns the
// bytes of a module of at most MaxInline bytes, or nil to make hosts fetch it.
func (s Slot) Spec(code func(lifecycle.Digest) []byte) lifecycle.SlotSpec {
	spec := lifecycle.SlotSpec{Kind: s.Kind}
	add := func(t Trial, stable bool) {
		c := lifecycle.Candidate{
			Generation: t.Generation, Goal: t.Goal, Permille: t.Permille, Scope: t.Scope, Stable: stable, Name: t.Name,
			SHA256: t.SHA256, Signature: t.Signature, Configuration: t.Configuration,
		}
		if t.Size <= MaxInline {
			c.Module = code(t.SHA256)
		}
		spec.Candidates = append(spec.Candidates, c)
	}
	if s.Stable != nil {
		add(Trial{Module: *s.Stable, Goal: lifecycle.ToActive}, true)
	}
	if s.Previous != nil {
		spec.Previous = s.Previous.Signature
	}
	if s.Candidate != nil {
		add(*s.Candidate, false)
	}
	for _, e := range s.Ended {
		spec.RolledBack = append(spec.RolledBack, lifecycle.RolledBackModule{Generation: e.Generation, Reason: e.Reason})
	}
	return spec
}

// deterministic marshals equal slots to equal bytes, so that a host never receives a
// slot that it already has.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Encode returns the message of a slot.
func Encode(s lifecycle.SlotSpec) (*api.SlotSpec, error) {
	m := &api.SlotSpec{Kind: string(s.Kind), Previous: s.Previous}
	for i, c := range s.Candidates {
		plugin, err := encodePlugin(c)
		if err != nil {
			return nil, fmt.Errorf("candidates[%d].plugin: %w", i, err)
		}
		m.Candidates = append(m.Candidates, &api.Candidate{
			Generation: uint64(c.Generation), Statement: c.Signature, Plugin: plugin, Goal: c.Goal.String(),
			Permille: uint32(c.Permille), Scope: c.Scope, Stable: c.Stable,
		})
	}
	for _, e := range s.RolledBack {
		m.RolledBack = append(m.RolledBack, &api.RolledBackModule{Generation: uint64(e.Generation), Reason: e.Reason})
	}
	return m, nil
}

// encodePlugin returns the module as an Envoy PluginConfig.
func encodePlugin(c lifecycle.Candidate) (*anypb.Any, error) {
	allowed := make(map[string]*wasmv3.SanitizationConfig, len(capabilities))
	for _, name := range capabilities {
		allowed[name] = new(wasmv3.SanitizationConfig)
	}
	p := &wasmv3.PluginConfig{
		Name: c.Name,
		// The native policy answers the calls that a module does not answer.
		FailurePolicy: wasmv3.FailurePolicy_FAIL_OPEN,
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			Runtime: Runtime, Code: encodeCode(c),
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

// encodeCode returns the bytes of the module, or where to fetch them.
func encodeCode(c lifecycle.Candidate) *corev3.AsyncDataSource {
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

// DecodeResource reads a slot from the extension config with the name. The error
// names the field.
func DecodeResource(name string, typed *anypb.Any) (lifecycle.SlotSpec, error) {
	kind, ok := KindOf(name)
	if !ok {
		return lifecycle.SlotSpec{}, fmt.Errorf("%.80q is not a policy slot", name)
	}
	m := new(api.SlotSpec)
	if err := typed.UnmarshalTo(m); err != nil {
		return lifecycle.SlotSpec{}, fmt.Errorf("typed_config: %w", err)
	}
	if m.GetKind() != string(kind) {
		return lifecycle.SlotSpec{}, fmt.Errorf("kind: %.40q in the slot of %s", m.GetKind(), kind)
	}
	return Decode(m)
}

// Decode reads a message, and establishes the invariants of a SlotSpec. The error
// names the field. The result shares the message's bytes.
func Decode(m *api.SlotSpec) (lifecycle.SlotSpec, error) {
	w := lifecycle.SlotSpec{Kind: lifecycle.Kind(m.GetKind())}
	switch {
	case !w.Kind.Known():
		return lifecycle.SlotSpec{}, fmt.Errorf("kind: %.40q: must be one of %s", string(w.Kind), strings.Join(lifecycle.KindNames(), ", "))
	case len(m.GetCandidates()) > 2:
		return lifecycle.SlotSpec{}, fmt.Errorf("candidates: %d: at most one stable candidate and one on trial are allowed", len(m.GetCandidates()))
	case len(m.GetRolledBack()) > MaxEnded:
		return lifecycle.SlotSpec{}, fmt.Errorf("rolled_back: more than %d", MaxEnded)
	}
	last := lifecycle.Native
	for i, r := range m.GetRolledBack() {
		if lifecycle.Generation(r.GetGeneration()) <= last {
			return lifecycle.SlotSpec{}, fmt.Errorf("rolled_back[%d].generation: %d after %d: generations must ascend from 1", i, r.GetGeneration(), last)
		}
		last = lifecycle.Generation(r.GetGeneration())
		if !fits(r.GetReason(), MaxReason) {
			return lifecycle.SlotSpec{}, fmt.Errorf("rolled_back[%d].reason: must be a printable text of at most %d bytes", i, MaxReason)
		}
		w.RolledBack = append(w.RolledBack, lifecycle.RolledBackModule{Generation: last, Reason: r.GetReason()})
	}
	last = 0
	for i, c := range m.GetCandidates() {
		at := fmt.Sprintf("candidates[%d]", i)
		out, err := decodeCandidate(w.Kind, c)
		if err != nil {
			return lifecycle.SlotSpec{}, fmt.Errorf("%s.%w", at, err)
		}
		_, ended := slices.BinarySearchFunc(w.RolledBack, out.Generation, func(e lifecycle.RolledBackModule, g lifecycle.Generation) int {
			return cmp.Compare(e.Generation, g)
		})
		switch {
		case out.Generation <= last:
			return lifecycle.SlotSpec{}, fmt.Errorf("%s.generation: %d after %d: generations must ascend from 1", at, out.Generation, last)
		case ended:
			return lifecycle.SlotSpec{}, fmt.Errorf("%s.generation: %d was rolled back", at, out.Generation)
		case i > 0 && out.Stable:
			return lifecycle.SlotSpec{}, fmt.Errorf("%s.stable: only the first candidate may be stable", at)
		case i > 0 && !w.Candidates[0].Stable:
			return lifecycle.SlotSpec{}, fmt.Errorf("%s: there is a candidate on trial already", at)
		}
		last = out.Generation
		w.Candidates = append(w.Candidates, out)
	}
	if p := m.GetPrevious(); len(p) > 0 {
		if len(p) > MaxSignature || len(w.Candidates) == 0 || !w.Candidates[0].Stable {
			return lifecycle.SlotSpec{}, fmt.Errorf("previous: %d bytes: must be at most %d, beside a stable candidate", len(p), MaxSignature)
		}
		w.Previous = p
	}
	return w, nil
}

// decodeCandidate reads one candidate. The error begins with the field.
func decodeCandidate(k lifecycle.Kind, m *api.Candidate) (lifecycle.Candidate, error) {
	c := lifecycle.Candidate{
		Generation: lifecycle.Generation(m.GetGeneration()), Permille: int(min(m.GetPermille(), lifecycle.Permilles)), Scope: m.GetScope(),
		Stable: m.GetStable(), Signature: m.GetStatement(),
	}
	var err error
	if c.Goal, err = lifecycle.ParseGoal(m.GetGoal()); err != nil {
		return c, err // the error begins with the field
	}
	switch {
	case c.Goal == lifecycle.ToStable:
		return c, fmt.Errorf("goal: %q: set the field stable instead", c.Goal)
	case c.Stable && (c.Goal != lifecycle.ToActive || c.Permille != 0 || c.Scope != ""):
		return c, fmt.Errorf("stable: its goal must be %s, without a share or a scope", lifecycle.ToActive)
	case len(c.Signature) == 0 || len(c.Signature) > MaxSignature:
		return c, fmt.Errorf("statement: %d bytes: must have 1 to %d", len(c.Signature), MaxSignature)
	}
	if !c.Stable {
		if err := CheckGoal(k, c.Goal, c.Permille, c.Scope); err != nil {
			return c, err // the error begins with the field
		}
	}
	p := new(wasmv3.PluginConfig)
	if err := m.GetPlugin().UnmarshalTo(p); err != nil {
		return c, fmt.Errorf("plugin: %w", err)
	}
	if err := decodePlugin(&c, p); err != nil {
		return c, fmt.Errorf("plugin.%w", err)
	}
	return c, nil
}

// decodePlugin reads the module of a candidate. The error begins with the field.
func decodePlugin(c *lifecycle.Candidate, p *wasmv3.PluginConfig) error {
	c.Name = p.GetName()
	vm := p.GetVmConfig()
	switch {
	case c.Name == "" || !fits(c.Name, MaxName):
		return fmt.Errorf("name: must be a printable text of 1 to %d bytes", MaxName)
	case vm.GetRuntime() != Runtime:
		return fmt.Errorf("vm_config.runtime: %.40q: must be %q", vm.GetRuntime(), Runtime)
	case vm.GetAllowPrecompiled():
		return errors.New("vm_config.allow_precompiled: must be false: precompiled code is not verified")
	}
	if a := p.GetConfiguration(); a != nil {
		b := new(wrapperspb.BytesValue)
		if err := a.UnmarshalTo(b); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
		if len(b.GetValue()) > MaxConfiguration {
			return fmt.Errorf("configuration: %d bytes: must have at most %d", len(b.GetValue()), MaxConfiguration)
		}
		if len(b.GetValue()) > 0 {
			c.Configuration = b.GetValue()
		}
	}
	code := vm.GetCode()
	if remote := code.GetRemote(); remote != nil {
		text := remote.GetSha256()
		if err := c.SHA256.UnmarshalText([]byte(text)); err != nil || c.SHA256.String() != text {
			return fmt.Errorf("vm_config.code.remote.sha256: must be %d lower-case hexadecimal digits", 2*len(c.SHA256))
		}
		return nil
	}
	c.Module = code.GetLocal().GetInlineBytes()
	if n := len(c.Module); n == 0 || n > MaxInline {
		return fmt.Errorf("vm_config.code.local.inline_bytes: %d bytes: must have 1 to %d, or the code must be remote", n, MaxInline)
	}
	c.SHA256 = lifecycle.Sum(c.Module)
	return nil
}

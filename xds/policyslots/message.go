package policyslots

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
)

// MaxInline is the largest module that the slot's message contains, in bytes; hosts
// fetch larger ones from the Modules service of their control plane.
const MaxInline = 256 << 10

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

// Encode returns the message of a slot.
func Encode(s lifecycle.SlotSpec) *api.SlotSpec {
	m := &api.SlotSpec{Kind: string(s.Kind), Previous: s.Previous}
	for _, c := range s.Candidates {
		out := &api.Candidate{
			Generation: uint64(c.Generation), Statement: c.Signature, Name: c.Name, Goal: c.Goal.String(), Permille: uint32(c.Permille),
			Scope: c.Scope, Stable: c.Stable, Module: c.Module, Configuration: c.Configuration,
		}
		if c.Module == nil {
			out.Sha256 = c.SHA256[:]
		}
		m.Candidates = append(m.Candidates, out)
	}
	for _, e := range s.RolledBack {
		m.RolledBack = append(m.RolledBack, &api.RolledBackModule{Generation: uint64(e.Generation), Reason: e.Reason})
	}
	return m
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
	w := lifecycle.SlotSpec{Kind: lifecycle.Kind(m.GetKind()), Previous: m.GetPrevious()}
	for i, r := range m.GetRolledBack() {
		if !fits(r.GetReason(), MaxReason) {
			return lifecycle.SlotSpec{}, fmt.Errorf("rolled_back[%d].reason: must be a printable text of at most %d bytes", i, MaxReason)
		}
		w.RolledBack = append(w.RolledBack, lifecycle.RolledBackModule{Generation: lifecycle.Generation(r.GetGeneration()), Reason: r.GetReason()})
	}
	for i, c := range m.GetCandidates() {
		out, err := decodeCandidate(c)
		if err != nil {
			return lifecycle.SlotSpec{}, fmt.Errorf("candidates[%d].%w", i, err)
		}
		w.Candidates = append(w.Candidates, out)
	}
	if len(w.Previous) > MaxSignature {
		return lifecycle.SlotSpec{}, fmt.Errorf("previous: %d bytes: must be at most %d", len(w.Previous), MaxSignature)
	}
	if err := w.Validate(); err != nil {
		return lifecycle.SlotSpec{}, err
	}
	return w, nil
}

// decodeCandidate reads one candidate. The error begins with the field.
func decodeCandidate(m *api.Candidate) (lifecycle.Candidate, error) {
	c := lifecycle.Candidate{
		Generation: lifecycle.Generation(m.GetGeneration()), Permille: int(min(m.GetPermille(), lifecycle.Permilles)), Scope: m.GetScope(),
		Stable: m.GetStable(), Signature: m.GetStatement(), Name: m.GetName(), SHA256: lifecycle.Sum(m.GetModule()),
	}
	var err error
	if c.Goal, err = lifecycle.ParseGoal(m.GetGoal()); err != nil {
		return c, err // the error begins with the field
	}
	switch {
	case len(c.Signature) == 0 || len(c.Signature) > MaxSignature:
		return c, fmt.Errorf("statement: %d bytes: must have 1 to %d", len(c.Signature), MaxSignature)
	case !fits(c.Scope, MaxName):
		return c, fmt.Errorf("scope: must be a printable text of at most %d bytes", MaxName)
	case c.Name == "" || !fits(c.Name, MaxName):
		return c, fmt.Errorf("name: must be a printable text of 1 to %d bytes", MaxName)
	case len(m.GetConfiguration()) > MaxConfiguration:
		return c, fmt.Errorf("configuration: %d bytes: must have at most %d", len(m.GetConfiguration()), MaxConfiguration)
	case len(m.GetModule()) > MaxInline:
		return c, fmt.Errorf("module: %d bytes: must have at most %d, or hosts must fetch it by sha256", len(m.GetModule()), MaxInline)
	case len(m.GetModule()) == 0 && len(m.GetSha256()) != len(c.SHA256):
		return c, fmt.Errorf("sha256: %d bytes: must have %d where there is no module", len(m.GetSha256()), len(c.SHA256))
	}
	if len(m.GetConfiguration()) > 0 {
		c.Configuration = m.GetConfiguration()
	}
	if len(m.GetModule()) > 0 {
		c.Module = m.GetModule()
	} else {
		copy(c.SHA256[:], m.GetSha256())
	}
	return c, nil
}

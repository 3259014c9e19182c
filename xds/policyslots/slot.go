package policyslots

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of a slot, in bytes where nothing else is said.
const (
	MaxModule        = 8 << 20
	MaxSignature     = 16 << 10
	MaxConfiguration = 64 << 10
	MaxName          = 256 // of a module, a version, a scope, an operator
	MaxReason        = 1 << 10
	MaxSigners       = 16
	// MaxEnded is how many ended generations are kept, the highest ones. What is
	// forgotten is below the floor.
	MaxEnded = 32
)

// Permilles is the whole of what a canary has a share of.
const Permilles = 1000

// Goal is how far a generation may go on every host.
type Goal string

// The goals in their order. To push or to move a generation to Proven says that
// it passes no gates, because somebody answers for it; a candidate has one of the
// others.
const (
	Warm   Goal = "warm"
	Shadow Goal = "shadow"
	Canary Goal = "canary"
	Active Goal = "active"
	Proven Goal = "proven"
)

// kinds are the kinds of policy, each with a slot of its name, and whether one
// decides for one request, so that a canary is a share of them. The others decide
// for many, and try a candidate for one scope.
var kinds = [...]struct {
	name       string
	perRequest bool
}{
	{"bid-quote", true}, {"bid-select", true}, {"guard", false}, {"outlier", true}, {"partition", false}, {"place", true}, {"refine", false},
}

// Kinds lists the kinds of policy, sorted.
func Kinds() []string {
	out := make([]string, len(kinds))
	for i, k := range kinds {
		out[i] = k.name
	}
	return out
}

// Known reports whether there is a kind, and a slot, of a name.
func Known(kind string) bool {
	return slices.ContainsFunc(kinds[:], func(k struct {
		name       string
		perRequest bool
	}) bool {
		return k.name == kind
	})
}

// PerRequest reports whether a kind decides for one request.
func PerRequest(kind string) bool {
	for _, k := range kinds {
		if k.name == kind {
			return k.perRequest
		}
	}
	return false
}

// Digest is the SHA-256 of a module's bytes.
type Digest [32]byte

// String is the digest in hexadecimal.
func (d Digest) String() string { return fmt.Sprintf("%x", d[:]) }

// Module is one generation: a signed module, as it was pushed.
type Module struct {
	Generation    uint64 // of its statement; never 0
	Name, Version string // of its statement
	SHA256        Digest
	Size          int    // bytes
	Signature     []byte // the file with the statement and its signatures
	Configuration []byte // what the module is configured with; may be empty
	Signers       []string
	By            string // who pushed it; may be empty
	At            time.Time
}

// Trial is a generation on its way.
type Trial struct {
	Module
	Goal Goal // Warm to Active
	// Permille is the largest share of a canary, where the kind decides for one
	// request; 0 is as many as the host's own ladder has.
	Permille int
	// Scope is the one that a canary decides for, where the kind decides for many.
	Scope string
	Since time.Time // when the goal was set
}

// Ended is a generation that never runs again.
type Ended struct {
	Generation uint64
	Name       string
	Reason     string
	By         string // an operator or a control plane
	At         time.Time
}

// Slot is what one slot of every host should run. The zero value but for Kind is
// one without modules: each host's own native policy.
type Slot struct {
	Kind      string
	Proven    *Module // what the fleet runs; nil: the native policy
	Previous  *Module // what a rollback of Proven goes back to; nil: the native policy
	Candidate *Trial  // nil: none
	Floor     uint64  // the highest generation ever pushed
	Ended     []Ended // by generation, ascending
}

// Validate reports the first broken invariant, or nil.
func (s Slot) Validate() error {
	if !Known(s.Kind) {
		return fmt.Errorf("slot %.40q: there are %s", s.Kind, strings.Join(Kinds(), ", "))
	}
	if err := s.validate(); err != nil {
		return fmt.Errorf("slot %s: %w", s.Kind, err)
	}
	return nil
}

func (s Slot) validate() error {
	last := uint64(0)
	for _, m := range s.modules() {
		if err := m.Module.validate(); err != nil {
			return fmt.Errorf("%s: %w", m.place, err)
		}
		switch {
		case m.Generation <= last:
			return fmt.Errorf("%s: generation %d after %d: they ascend", m.place, m.Generation, last)
		case m.Generation > s.Floor:
			return fmt.Errorf("%s: generation %d is beyond the floor, %d", m.place, m.Generation, s.Floor)
		case s.ended(m.Generation):
			return fmt.Errorf("%s: generation %d was rolled back", m.place, m.Generation)
		}
		last = m.Generation
	}
	if s.Previous != nil && s.Proven == nil {
		return errors.New("previous: there is nothing proven after it")
	}
	if s.Candidate != nil {
		if s.Candidate.Goal == Proven {
			return errors.New("candidate: a candidate is not proven")
		}
		if err := CheckGoal(s.Kind, s.Candidate.Goal, s.Candidate.Permille, s.Candidate.Scope); err != nil {
			return fmt.Errorf("candidate: %w", err)
		}
	}
	if len(s.Ended) > MaxEnded {
		return fmt.Errorf("ended: more than %d", MaxEnded)
	}
	last = 0
	for i, e := range s.Ended {
		switch {
		case e.Generation <= last || e.Generation > s.Floor:
			return fmt.Errorf("ended %d: generation %d: they ascend, up to the floor, %d", i, e.Generation, s.Floor)
		case !fits(e.Name, MaxName) || !fits(e.By, MaxName) || !fits(e.Reason, MaxReason):
			return fmt.Errorf("ended %d: a text is too long, or not printable", i)
		}
		last = e.Generation
	}
	return nil
}

// placed is a module and where in the slot it is.
type placed struct {
	*Module
	place string
}

// modules lists those that are there, in the order of their generations.
func (s Slot) modules() []placed {
	var out []placed
	if s.Previous != nil {
		out = append(out, placed{s.Previous, "previous"})
	}
	if s.Proven != nil {
		out = append(out, placed{s.Proven, "proven"})
	}
	if s.Candidate != nil {
		out = append(out, placed{&s.Candidate.Module, "candidate"})
	}
	return out
}

// Digests lists the modules that the slot needs, the one to go back to included.
func (s Slot) Digests() []Digest {
	var out []Digest
	for _, m := range s.modules() {
		out = append(out, m.SHA256)
	}
	return out
}

// Clone returns a copy that shares nothing.
func (s Slot) Clone() Slot {
	s.Ended = slices.Clone(s.Ended)
	s.Proven, s.Previous = s.Proven.clone(), s.Previous.clone()
	if s.Candidate != nil {
		t := *s.Candidate
		t.Module = *t.Module.clone()
		s.Candidate = &t
	}
	return s
}

func (m *Module) clone() *Module {
	if m == nil {
		return nil
	}
	c := *m
	c.Signature, c.Configuration, c.Signers = slices.Clone(m.Signature), slices.Clone(m.Configuration), slices.Clone(m.Signers)
	return &c
}

func (s Slot) ended(generation uint64) bool {
	return slices.ContainsFunc(s.Ended, func(e Ended) bool { return e.Generation == generation })
}

func (m *Module) validate() error {
	switch {
	case m.Generation == 0:
		return errors.New("generation 0 is the native policy; statements number from 1")
	case m.Name == "" || !fits(m.Name, MaxName) || !fits(m.Version, MaxName) || !fits(m.By, MaxName):
		return fmt.Errorf("name, version and operator: want printable texts of at most %d bytes, and a name", MaxName)
	case m.Size < 1 || m.Size > MaxModule:
		return fmt.Errorf("size %d: want 1 to %d bytes", m.Size, MaxModule)
	case len(m.Signature) == 0 || len(m.Signature) > MaxSignature:
		return fmt.Errorf("signature of %d bytes: want 1 to %d", len(m.Signature), MaxSignature)
	case len(m.Configuration) > MaxConfiguration:
		return fmt.Errorf("configuration of %d bytes: want at most %d", len(m.Configuration), MaxConfiguration)
	case len(m.Signers) > MaxSigners:
		return fmt.Errorf("more than %d signers", MaxSigners)
	}
	for _, name := range m.Signers {
		if !fits(name, MaxName) {
			return fmt.Errorf("signer %.40q: want a printable text of at most %d bytes", name, MaxName)
		}
	}
	return nil
}

// CheckGoal says why a generation of a kind cannot go so far; nil where it can. The
// error begins with the parameter.
func CheckGoal(kind string, g Goal, permille int, scope string) error {
	switch g {
	case Warm, Shadow, Canary, Active, Proven:
	default:
		return fmt.Errorf("goal %.40q: want %s, %s, %s, %s or %s", string(g), Warm, Shadow, Canary, Active, Proven)
	}
	if !fits(scope, MaxName) {
		return fmt.Errorf("scope: want a printable text of at most %d bytes", MaxName)
	}
	if permille < 0 || permille >= Permilles {
		return fmt.Errorf("permille %d: want 1 to %d; the goal %s is for all requests", permille, Permilles-1, Active)
	}
	switch {
	case PerRequest(kind) && scope != "":
		return fmt.Errorf("scope: %s decides for one request: give the share of a canary in permille", kind)
	case PerRequest(kind) && g == Canary && permille == 0:
		return fmt.Errorf("permille: give the share of the canary, 1 to %d", Permilles-1)
	case !PerRequest(kind) && permille != 0:
		return fmt.Errorf("permille: %s decides for many requests: give the scope of a canary", kind)
	case !PerRequest(kind) && scope == "" && (g == Canary || g == Active):
		return fmt.Errorf("scope: give the one that tries it first: a model's name, or for refine a node")
	}
	return nil
}

// fits reports whether a text can be stored and shown in a line.
func fits(s string, most int) bool {
	if len(s) > most || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Clip makes a text fit: one line of at most so many bytes.
func Clip(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	for len(s) > most {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

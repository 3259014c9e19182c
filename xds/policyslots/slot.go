package policyslots

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Bounds of a slot, in bytes unless stated otherwise.
const (
	MaxModule        = 8 << 20
	MaxSignature     = 16 << 10
	MaxConfiguration = 64 << 10
	MaxName          = 256 // of a module, a version, a scope, an operator
	MaxReason        = 1 << 10
	MaxSigners       = 16
	// MaxEnded is how many ended generations are kept: the highest ones. Dropped ones
	// are below the floor.
	MaxEnded = lifecycle.MaxRolledBack
)

// Module is one generation: a signed module as it was pushed.
type Module struct {
	Generation    lifecycle.Generation `json:"generation"`        // of its statement; never 0
	Name          string               `json:"name"`              // of its statement
	Version       string               `json:"version,omitempty"` // of its statement
	SHA256        lifecycle.Digest     `json:"sha256"`
	Size          int                  `json:"bytes"`
	Signature     []byte               `json:"signature"`               // the file with the statement and its signatures
	Configuration []byte               `json:"configuration,omitempty"` // for the module
	Signers       []string             `json:"signers,omitempty"`
	By            string               `json:"by,omitempty"` // the operator that pushed it
	At            time.Time            `json:"at"`
}

// Trial is a candidate: a generation that hosts try.
type Trial struct {
	Module
	Goal lifecycle.Goal `json:"goal"` // ToWarm to ToActive
	// Permille is the largest share of a canary, where the kind decides for one
	// request. 0 means the last share in the host's own list of shares.
	Permille int `json:"permille,omitempty"`
	// Scope is the scope that a canary decides for, where the kind decides for many
	// requests.
	Scope string    `json:"scope,omitempty"`
	Since time.Time `json:"since"` // when the goal was set
}

// Ended is a generation that will never run again.
type Ended struct {
	Generation lifecycle.Generation `json:"generation"`
	Name       string               `json:"name,omitempty"`
	Reason     string               `json:"reason,omitempty"`
	By         string               `json:"by,omitempty"` // an operator or a control plane
	At         time.Time            `json:"at"`
}

// Slot is what every host should run in one policy slot. A Slot with only a Kind has no
// modules: each host runs its own native policy. The tags are the names in the plan
// object.
type Slot struct {
	Kind      lifecycle.Kind       `json:"slot"`
	Stable    *Module              `json:"stable,omitempty"`      // what the fleet runs; nil: the native policy
	Previous  *Module              `json:"previous,omitempty"`    // the module that a rollback of Stable restores; nil: the native policy
	Candidate *Trial               `json:"candidate,omitempty"`   // nil: none
	Floor     lifecycle.Generation `json:"floor"`                 // the highest generation ever pushed
	Ended     []Ended              `json:"rolled_back,omitempty"` // by generation, ascending
}

// Validate reports the first broken invariant, or nil.
func (s Slot) Validate() error {
	if !s.Kind.Known() {
		return fmt.Errorf("slot %.40q: must be one of %s", string(s.Kind), strings.Join(lifecycle.KindNames(), ", "))
	}
	if err := s.validate(); err != nil {
		return fmt.Errorf("slot %s: %w", s.Kind, err)
	}
	return nil
}

func (s Slot) validate() error {
	last := lifecycle.Native
	for _, m := range s.modules() {
		if err := m.Module.validate(); err != nil {
			return fmt.Errorf("%s: %w", m.place, err)
		}
		switch {
		case m.Generation <= last:
			return fmt.Errorf("%s: generation %d after %d: generations must ascend", m.place, m.Generation, last)
		case m.Generation > s.Floor:
			return fmt.Errorf("%s: generation %d is above the floor, %d", m.place, m.Generation, s.Floor)
		case s.ended(m.Generation):
			return fmt.Errorf("%s: generation %d was rolled back", m.place, m.Generation)
		}
		last = m.Generation
	}
	if s.Previous != nil && s.Stable == nil {
		return errors.New("previous: there is no stable generation after it")
	}
	if s.Candidate != nil {
		if s.Candidate.Goal == lifecycle.ToStable {
			return errors.New("candidate: its goal is stable: then it is not a candidate")
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
			return fmt.Errorf("ended %d: generation %d: generations must ascend, up to the floor, %d", i, e.Generation, s.Floor)
		case !fits(e.Name, MaxName) || !fits(e.By, MaxName) || !fits(e.Reason, MaxReason):
			return fmt.Errorf("ended %d: a text is too long or not printable", i)
		}
		last = e.Generation
	}
	return nil
}

// placed is a module with its role in the slot.
type placed struct {
	*Module
	place string
}

// modules returns the modules of the slot, in ascending generation.
func (s Slot) modules() []placed {
	var out []placed
	if s.Previous != nil {
		out = append(out, placed{s.Previous, "previous"})
	}
	if s.Stable != nil {
		out = append(out, placed{s.Stable, "stable"})
	}
	if s.Candidate != nil {
		out = append(out, placed{&s.Candidate.Module, "candidate"})
	}
	return out
}

// Digests returns the digests of the modules that the slot needs, including the
// previous one.
func (s Slot) Digests() []lifecycle.Digest {
	var out []lifecycle.Digest
	for _, m := range s.modules() {
		out = append(out, m.SHA256)
	}
	return out
}

// Clone returns a deep copy.
func (s Slot) Clone() Slot {
	s.Ended = slices.Clone(s.Ended)
	s.Stable, s.Previous = s.Stable.clone(), s.Previous.clone()
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

func (s Slot) ended(generation lifecycle.Generation) bool {
	return slices.ContainsFunc(s.Ended, func(e Ended) bool { return e.Generation == generation })
}

func (m *Module) validate() error {
	switch {
	case m.Generation == 0:
		return errors.New("generation 0 is the native policy: statements count from 1")
	case m.Name == "" || !fits(m.Name, MaxName) || !fits(m.Version, MaxName) || !fits(m.By, MaxName):
		return fmt.Errorf("name, version and operator: must be printable texts of at most %d bytes, and the name not empty", MaxName)
	case m.SHA256 == lifecycle.Digest{}:
		return errors.New("sha256: required")
	case m.Size < 1 || m.Size > MaxModule:
		return fmt.Errorf("size %d: must be 1 to %d bytes", m.Size, MaxModule)
	case len(m.Signature) == 0 || len(m.Signature) > MaxSignature:
		return fmt.Errorf("signature of %d bytes: must have 1 to %d", len(m.Signature), MaxSignature)
	case len(m.Configuration) > MaxConfiguration:
		return fmt.Errorf("configuration of %d bytes: must have at most %d", len(m.Configuration), MaxConfiguration)
	case len(m.Signers) > MaxSigners:
		return fmt.Errorf("more than %d signers", MaxSigners)
	}
	for _, name := range m.Signers {
		if !fits(name, MaxName) {
			return fmt.Errorf("signer %.40q: must be a printable text of at most %d bytes", name, MaxName)
		}
	}
	return nil
}

// CheckGoal returns an error if a module of a kind cannot have the goal. The error
// begins with the name of the wrong parameter.
func CheckGoal(k lifecycle.Kind, g lifecycle.Goal, permille int, scope string) error {
	if !fits(scope, MaxName) {
		return fmt.Errorf("scope: must be a printable text of at most %d bytes", MaxName)
	}
	return lifecycle.CheckGoal(k, g, permille, scope)
}

// fits reports whether a text can be stored and displayed on one line.
func fits(s string, most int) bool {
	if len(s) > most || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

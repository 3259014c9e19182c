package lifecycle

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// MaxRolledBack is how many generations a SlotSpec may roll back.
const MaxRolledBack = 32

// SlotSpec is what one slot of every host should run.
//
// Invariants, which the control plane keeps and hosts check:
//  1. Kind is known; Candidates are at most two, in ascending generation; at most
//     one is Stable, which is the first, and at most one is not,
//  2. every candidate has a goal that its kind can have, a signature file, and
//     either the module's bytes, whose digest is SHA256, or that digest alone,
//  3. RolledBack is ascending and names no candidate,
//  4. there is a Previous only beside a stable candidate.
//
// No candidate means that the native policy decides.
type SlotSpec struct {
	Kind       Kind
	Candidates []Candidate
	RolledBack []RolledBackModule
	// Previous is the signature file of the module that a rollback of the stable
	// candidate goes back to, nil for none. A host that admits it now, below the
	// stable one, can run it then. One that cannot be admitted is ignored.
	Previous []byte
}

// Validate returns the first broken invariant of the order of candidates, their goals and
// the rollbacks, nil for none. The error begins with the field.
func (s SlotSpec) Validate() error {
	if !s.Kind.Known() {
		return errors.New("kind: " + strconv.Quote(clip(string(s.Kind))) + ": must be one of " + strings.Join(KindNames(), ", "))
	}
	if len(s.RolledBack) > MaxRolledBack {
		return errors.New("rolled_back: more than " + strconv.Itoa(MaxRolledBack))
	}
	last := Native
	for i, r := range s.RolledBack {
		if r.Generation <= last {
			return errors.New(element("rolled_back", i) + notAscending(r.Generation, last))
		}
		last = r.Generation
	}
	last = Native
	for i, c := range s.Candidates {
		if err := s.validateCandidate(i, last); err != nil {
			return err
		}
		last = c.Generation
	}
	if len(s.Previous) > 0 && (len(s.Candidates) == 0 || !s.Candidates[0].Stable) {
		return errors.New("previous: there is no stable candidate")
	}
	return nil
}

func element(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

func notAscending(g, last Generation) string {
	return ".generation: " + strconv.FormatUint(uint64(g), 10) + " after " + strconv.FormatUint(uint64(last), 10) + ": generations must ascend from 1"
}

func (s SlotSpec) validateCandidate(i int, last Generation) error {
	c, at := s.Candidates[i], element("candidates", i)
	switch {
	case i > 1 || i == 1 && !s.Candidates[0].Stable:
		return errors.New(at + ": at most one stable candidate and then one on trial are allowed")
	case c.Generation <= last:
		return errors.New(at + notAscending(c.Generation, last))
	case slices.ContainsFunc(s.RolledBack, func(r RolledBackModule) bool { return r.Generation == c.Generation }):
		return errors.New(at + ".generation: " + strconv.FormatUint(uint64(c.Generation), 10) + " was rolled back")
	case c.Stable && i > 0:
		return errors.New(at + ".stable: only the first candidate may be stable")
	case c.Stable && (c.Goal != ToActive || c.Permille != 0 || c.Scope != ""):
		return errors.New(at + ".stable: its goal must be " + ToActive.String() + ", without a share or a scope")
	case c.Stable:
		return nil
	case c.Goal == ToStable:
		return errors.New(at + `.goal: "stable": set the field stable instead`)
	}
	if err := CheckGoal(s.Kind, c.Goal, c.Permille, c.Scope); err != nil {
		return errors.New(at + "." + err.Error())
	}
	return nil
}

// Candidate is a module that a slot should run.
type Candidate struct {
	Generation Generation
	Goal       Goal // ToWarm to ToActive; ToActive for a stable one
	// Permille is the largest share of the canary, for kinds that decide for one
	// request. For ToActive, 0 means the last share of the host's own ladder.
	Permille int
	Scope    string // of the canary, for kinds that decide for many requests
	Stable   bool   // the fleet runs it: it skips the gates
	// Name, Version and SHA256 are those of the signed statement; a zero value
	// accepts whatever the statement says.
	Name, Version string
	SHA256        Digest
	Signature     []byte // the signature file
	Configuration []byte // for the module
	// Module is the module as its author built it, nil while only its digest is
	// known.
	Module []byte
}

// RolledBackModule is a generation that never runs again.
type RolledBackModule struct {
	Generation Generation
	Reason     string
}

// SlotStatus is the state of one slot of one host.
type SlotStatus struct {
	Kind Kind `json:"kind"`
	// Host is the host whose slots these are, where several replicas share them:
	// their reports are about the same calls. "" means the replica's own.
	Host string `json:"host,omitempty"`
	// Active is the generation that decides, Native for the native policy.
	Active Generation `json:"active"`
	// Candidate decides for Permille of the requests, or for Scope; 0 for none.
	Candidate Generation `json:"candidate,omitempty"`
	Permille  int        `json:"permille,omitempty"`
	Scope     string     `json:"scope,omitempty"`
	// Floor is the highest generation that was ever offered: older ones are
	// refused as replayed.
	Floor Generation `json:"floor"`
	// Refused is why the host does not accept what the slot should run; "" when it
	// does.
	Refused string `json:"refused,omitempty"`
	// Modules are the generations that the host knows.
	Modules []Status `json:"modules,omitempty"`
}

// Module returns the status of a generation; ok is false when the host does not
// know it.
func (s SlotStatus) Module(g Generation) (m Status, ok bool) {
	for _, m := range s.Modules {
		if m.Generation == g {
			return m, true
		}
	}
	return Status{}, false
}

// Status is the state of one generation on one host.
type Status struct {
	Generation Generation `json:"generation"`
	Phase      Phase      `json:"phase"`
	// Reached is the furthest of Warm, Shadow, Canary and Active that the generation
	// is known to have reached; 0 when it was never warm.
	Reached  Phase  `json:"reached,omitzero"`
	Goal     Goal   `json:"goal,omitzero"`
	Permille int    `json:"permille,omitempty"` // of its canary
	Name     string `json:"name,omitempty"`
	Version  string `json:"version,omitempty"`
	SHA256   Digest `json:"sha256,omitzero"`
	// SinceUnixMillis is when the phase, or this step of the canary, began; 0 when
	// that is not known.
	SinceUnixMillis int64 `json:"since_unix_millis,omitempty"`
	// NotAfterUnixMillis is when the statement expires; 0 for never.
	NotAfterUnixMillis int64 `json:"not_after_unix_millis,omitempty"`
	// Reason is why the generation is no further, or why it ended; and, of one that
	// runs, that its statement expires soon or has expired.
	Reason string `json:"reason,omitempty"`
	// Blocked is why the generation, which is in shadow, would be rejected if it had
	// to go on: it stays in shadow. "" when nothing blocks it.
	Blocked string `json:"blocked,omitempty"`
	// Inconclusive is what speaks against the generation on too few answers to judge
	// by. It goes no further until more are known.
	Inconclusive string `json:"inconclusive,omitempty"`
	// Calls and Faults count since the module was loaded, shadow not included. A
	// fault is a call that the native policy had to answer.
	Calls  uint64 `json:"calls"`
	Faults uint64 `json:"faults"`
	// Starved are those of Calls that the native policy answered because the
	// operating system did not run the module in time. They are not faults.
	Starved uint64 `json:"starved,omitempty"`
	// Figures are those of the present phase, or of the last one.
	Figures Figures `json:"figures"`
	// Fuel is what recorded calls burnt.
	Fuel Fuel `json:"fuel,omitzero"`
}

// Why returns what an operator has to know about the generation, in one line:
// what speaks against it, then the reason.
func (s Status) Why() string {
	switch {
	case s.Blocked != "":
		return strings.TrimSuffix("would not be promoted: "+s.Blocked+"; "+s.Reason, "; ")
	case s.Inconclusive != "":
		return strings.TrimSuffix("inconclusive: "+s.Inconclusive+"; "+s.Reason, "; ")
	}
	return s.Reason
}

// Figures are counts since a phase, or a step of a canary, began.
type Figures struct {
	Calls    uint64 `json:"calls"`    // answered
	Faults   uint64 `json:"faults"`   // trapped, out of fuel, or with an answer that breaks a rule
	Differ   uint64 `json:"differ"`   // answers unlike those of the active generation
	Worse    uint64 `json:"worse"`    // worse ones, by the host's own measure
	Compared uint64 `json:"compared"` // calls that the active generation answered, too: Differ and Worse are of these
}

// Add adds the counts of more.
func (f *Figures) Add(more Figures) {
	f.Calls += more.Calls
	f.Faults += more.Faults
	f.Differ += more.Differ
	f.Worse += more.Worse
	f.Compared += more.Compared
}

// Fuel is the fuel of recorded calls, in ticks; 0 before there was one.
type Fuel struct {
	Last int64 `json:"last"`
	Max  int64 `json:"max"`
}

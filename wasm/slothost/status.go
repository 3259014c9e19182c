package slothost

import (
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// Status is one slot at one moment.
type Status struct {
	Kind string `json:"kind"`
	// Active is the generation that decides, 0 for the native policy; Candidate the
	// one that decides for Permille of the requests or for the Scope, 0 for none.
	Active    uint64 `json:"active"`
	Candidate uint64 `json:"candidate,omitempty"`
	Permille  int    `json:"permille,omitempty"`
	Scope     string `json:"scope,omitempty"`
	// Floor is the highest generation that was ever offered here.
	Floor uint64 `json:"floor"`
	// Lives are those of the generations that are there, then of the ended ones,
	// latest first.
	Lives []Life `json:"lives,omitempty"`
	// Error says why the slot takes no modules; see Set.Err.
	Error string `json:"error,omitempty"`
}

// Life is what became of a generation.
type Life struct {
	Generation uint64 `json:"generation"`
	State      string `json:"state"` // as promotion.State names it
	Goal       string `json:"goal"`
	Permille   int    `json:"permille,omitempty"` // of its canary
	Since      int64  `json:"since_unix_micros"`  // when the state, or the step of its canary, began
	// Reason is why it is no further, or not there any more; and of one that is there,
	// that its statement expires soon, or has.
	Reason string `json:"reason,omitempty"`
	// Held is what it has shown in shadow that speaks against it; see promotion.Life.
	Held string `json:"held,omitempty"`
	// Doubt is what it has shown that speaks against it and is not sure; see promotion.Life.
	Doubt string `json:"doubt,omitempty"`
	// NotAfter is the end of its statement, in seconds since 1970; 0 for none.
	NotAfter int64  `json:"not_after_unix,omitempty"`
	Name     string `json:"name"`
	Version  string `json:"version"`
	SHA256   string `json:"sha256"`
	// Figures of the stage that it is in, or was in last.
	Figures Figures `json:"figures"`
	// Calls and Faults are all since it was loaded, shadow not included.
	Calls  uint64 `json:"calls"`
	Faults uint64 `json:"faults"`
	// Starved are those of Calls that the native policy answered because the machine
	// did not run the module in time; they count against nobody.
	Starved uint64 `json:"starved,omitempty"`
	// Fuel is what recorded calls burnt, in ticks.
	Fuel Fuel `json:"fuel"`
}

// Figures are counts of a stage; see promotion.Figures.
type Figures struct {
	Calls    uint64 `json:"calls"`
	Faults   uint64 `json:"faults"`
	Differ   uint64 `json:"differ"`
	Worse    uint64 `json:"worse"`
	Compared uint64 `json:"compared"`
}

// Fuel is the fuel of calls, in ticks; 0 before there was one.
type Fuel struct {
	Last int64 `json:"last"`
	Max  int64 `json:"max"`
}

// Status tells of the slots, in the order of their kinds.
func (s *Set) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.config.Kinds))
	for _, kind := range s.config.Kinds {
		st := s.slots[kind].status(s.config.Now())
		if s.err != nil {
			st.Error = s.err.Error()
		}
		all = append(all, st)
	}
	return all
}

// status tells of one slot. The set's lock is held.
func (k *kindSlot) status(at time.Time) Status {
	now, loaded, begin := k.slot.Status(), k.slot.Loaded(), k.slot.Begin().UnixMicro()
	st := Status{Kind: k.kind.String(), Active: uint64(now.Route.Active), Candidate: uint64(now.Route.Candidate),
		Permille: now.Route.Permille, Scope: now.Route.Scope, Floor: uint64(now.Floor)}
	for _, l := range now.Lives {
		life := Life{Generation: uint64(l.Generation), State: l.State.String(), Goal: l.Goal.String(), Permille: l.Permille,
			Since: begin + int64(l.Since), Reason: l.Reason, Held: l.Held, Doubt: l.Doubt, Figures: Figures(l.Figures)}
		var stats *policy.Stats
		if a := k.about[life.Generation]; a != nil {
			life.Name, life.Version, life.SHA256, stats = a.name, a.version, a.digest.String(), a.stats
			life.NotAfter = a.notAfter
			if ends := a.ends(at); ends != "" && l.State >= promotion.IsWarm && l.State <= promotion.IsPrevious {
				life.Reason = strings.TrimPrefix(life.Reason+"; "+ends, "; ")
			}
		}
		if p, ok := loaded[l.Generation].(*policy.Policy); ok {
			present := p.Stats()
			stats = &present
		}
		if stats != nil {
			life.Calls, life.Starved, life.Fuel = stats.Calls, stats.Starved, Fuel(stats.Fuel)
			for _, n := range stats.Faults {
				life.Faults += n
			}
		}
		st.Lives = append(st.Lives, life)
	}
	return st
}

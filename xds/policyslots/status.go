package policyslots

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/api"
)

// Bounds of what a host reports.
const (
	MaxStatuses = 16
	MaxLives    = 16
)

// Fresh is how long a report of a host counts as its present state.
const Fresh = 10 * time.Second

// Quiet is how long a candidate that decides on some hosts waits for those that
// were not asked enough to try it: a replica of the last stage proposes no
// boundary, and one that never has too much selects no bid.
const Quiet = 30 * time.Second

// The words of Life.State and Life.Reached that this package reads; package
// wasm/promotion, which hosts run, has them all.
const (
	rejected = "rejected"
	warm     = "warm"
	shadow   = "shadow"
	canary   = "canary"
)

// guard is the kind whose native policy allows everything.
const guard = "guard"

// Status is the state of one slot of one host, as it reports it.
type Status struct {
	Kind      string
	Active    uint64 // the generation that decides; 0: the native policy
	Candidate uint64 // the one that decides a share; 0: none
	Permille  int
	Scope     string
	Floor     uint64
	Lives     []Life
	Host      string // whose slots these are, where replicas share them; "": the node's own
	Refused   string // why the host does not take what it should run; "" when it does
}

// Life is one generation on one host.
type Life struct {
	Generation    uint64
	State, Goal   string
	Reached       string // the furthest of warm, shadow, canary, active; "": never warm
	Permille      int
	Name, Version string
	SHA256        Digest
	Reason        string
	// Calls, Faults and Starved since it was loaded: those that the native policy had
	// to answer for it, and for the machine, which did not run it. Compared of the
	// present stage; Differ and Worse are of those.
	Calls, Faults, Starved, Compared, Differ, Worse uint64
	Since                                           time.Time
}

// Report is what one host said of its slots last.
type Report struct {
	Node     string
	At       time.Time
	Statuses []Status
}

// Status returns what the report says of a slot; ok is false where nothing.
func (r Report) Status(kind string) (s Status, ok bool) {
	i := slices.IndexFunc(r.Statuses, func(s Status) bool { return s.Kind == kind })
	if i < 0 {
		return Status{}, false
	}
	return r.Statuses[i], true
}

// ReadStatuses reads what a host reports. What is out of bounds is left out or
// shortened: dropped counts it. No report is worth refusing for it.
func ReadStatuses(list []*api.SlotStatus) (out []Status, dropped int) {
	for _, m := range list {
		known := slices.ContainsFunc(out, func(s Status) bool { return s.Kind == m.GetKind() })
		if !Known(m.GetKind()) || known || len(out) == MaxStatuses {
			dropped++
			continue
		}
		s := Status{
			Kind: m.GetKind(), Active: m.GetActive(), Candidate: m.GetCandidate(), Permille: int(min(m.GetPermille(), Permilles)),
			Scope: Clip(m.GetScope(), MaxName), Floor: m.GetFloor(), Refused: Clip(m.GetRefused(), MaxReason), Host: Clip(m.GetHost(), MaxName),
		}
		for _, l := range m.GetModules() {
			twice := slices.ContainsFunc(s.Lives, func(o Life) bool { return o.Generation == l.GetGeneration() })
			if l.GetGeneration() == 0 || twice || len(s.Lives) == MaxLives {
				dropped++
				continue
			}
			life := Life{
				Generation: l.GetGeneration(), State: Clip(l.GetState(), MaxName), Goal: Clip(l.GetGoal(), MaxName), Reached: Clip(l.GetReached(), MaxName),
				Permille: int(min(l.GetPermille(), Permilles)), Name: Clip(l.GetName(), MaxName), Version: Clip(l.GetVersion(), MaxName),
				Reason: Clip(l.GetReason(), MaxReason), Calls: l.GetCalls(), Faults: l.GetFaults(), Differ: l.GetDiffer(), Worse: l.GetWorse(),
				Compared: l.GetCompared(), Starved: l.GetDescheduled(),
			}
			copy(life.SHA256[:], l.GetSha256())
			if l.GetSinceUnixMicros() > 0 {
				life.Since = time.UnixMicro(l.GetSinceUnixMicros()).UTC()
			}
			s.Lives = append(s.Lives, life)
		}
		out = append(out, s)
	}
	return out, dropped
}

// tried reports whether a generation came past warm on a host.
func (l Life) tried() bool {
	return l.Reached != "" && l.Reached != warm || l.Calls > 0 || l.Faults > 0
}

// ran reports whether a generation decided on a host, if only for some calls.
func (l Life) ran() bool { return l.Reached == string(Active) || l.Calls > 0 || l.Faults > 0 }

// Verdict is what reports say of a candidate.
type Verdict uint8

const (
	Wait    Verdict = iota // there is none, or it is on its way
	Settled                // all hosts run it
	Failed                 // it failed on one
)

// Judge says what hosts' reports mean for the candidate, with a reason where it
// has failed. It has settled when its goal is to be active and every host that
// has the slot, and reported within Fresh, says that it is; one host at least
// must. Where the kind decides for many, the hosts that have no part in the scope
// of the canary stay in it for ever, so they need only be ready for it. So do those
// that still try it when others have had it decide for Quiet: a gate that is not
// passed by then wants more calls than come. But while a host that tries it has seen
// something that speaks against it (Held, Doubted), it is waited for: it will find out,
// or give the doubt up. It has failed when a host rejected it past warm: what fails
// before may be the host's own trouble, and shows as such.
func (s Slot) Judge(now time.Time, reports []Report) (Verdict, string) {
	if s.Candidate == nil {
		return Wait, ""
	}
	active, idle, doubts, others := 0, 0, 0, 0
	quiet := false // some host has had it decide for so long
	for _, r := range reports {
		status, ok := r.Status(s.Kind)
		if !ok {
			continue
		}
		var own Life
		for _, l := range status.Lives {
			if l.Generation == s.Candidate.Generation {
				own = l
			}
		}
		if own.State == rejected && own.tried() {
			return Failed, fmt.Sprintf("%s: %s", r.Node, own.Reason)
		}
		switch {
		case now.Sub(r.At) > Fresh:
		case status.Refused != "":
			others++
		case status.Active == s.Candidate.Generation:
			active++
			quiet = quiet || !own.Since.IsZero() && now.Sub(own.Since) > Quiet
		case own.doubted():
			doubts++
		case !PerRequest(s.Kind) && status.Candidate == s.Candidate.Generation && own.Compared == 0:
		case own.State == shadow || own.State == canary:
			idle++
		default:
			others++
		}
	}
	// Hosts' clocks may be wrong; the goal's moment is the control plane's own.
	if quiet = quiet && now.Sub(s.Candidate.Since) > Quiet; idle > 0 && !quiet || doubts > 0 {
		return Wait, ""
	}
	if s.Candidate.Goal == Active && active > 0 && others == 0 {
		return Settled, ""
	}
	return Wait, ""
}

// Held begins the reason of a life in shadow that has shown there what would end it
// further on, and Doubted that of one in shadow or canary that has shown what may,
// once the host is sure of it.
const (
	Held    = "would not be promoted: "
	Doubted = "in doubt: "
)

// doubted reports whether a host that tries a generation has seen what speaks against
// it.
func (l Life) doubted() bool {
	return (l.State == shadow || l.State == canary) && (strings.HasPrefix(l.Reason, Held) || strings.HasPrefix(l.Reason, Doubted))
}

// Against says what hosts that told of it lately have seen in shadow of a
// generation that would end it further on, with the first of them and their number;
// "" where nothing.
func Against(kind string, generation uint64, now time.Time, reports []Report) string {
	found, others := "", 0
	hosts := make(map[string]bool)
	for _, r := range reports {
		status, _ := r.Status(kind)
		i := slices.IndexFunc(status.Lives, func(l Life) bool { return l.Generation == generation })
		if i < 0 || now.Sub(r.At) > Fresh || status.Host != "" && hosts[status.Host] {
			continue
		}
		hosts[status.Host] = true
		why, held := strings.CutPrefix(status.Lives[i].Reason, Held)
		switch {
		case !held || status.Lives[i].State != shadow:
		case found == "":
			found = fmt.Sprintf("%s: %s", cmp.Or(status.Host, r.Node), why)
		default:
			others++
		}
	}
	switch others {
	case 0:
		return found
	case 1:
		return found + "; and 1 other host says the like"
	}
	return fmt.Sprintf("%s; and %d other hosts say the like", found, others)
}

// Broken says why what the fleet runs is to be taken back, with the host that knows;
// "" where it is not. One host that rejected it after it had decided there is
// enough, as it is for a candidate: what it decides is the same everywhere. What
// fails before may be the host's own trouble. A guard without one before it stays,
// and denies where it does not run: without it every plan would be allowed.
func (s Slot) Broken(reports []Report) string {
	if s.Proven == nil || s.Kind == guard && s.Previous == nil {
		return ""
	}
	for _, r := range reports {
		status, _ := r.Status(s.Kind)
		for _, l := range status.Lives {
			if l.Generation == s.Proven.Generation && l.State == rejected && l.ran() {
				return fmt.Sprintf("%s: %s", r.Node, l.Reason)
			}
		}
	}
	return ""
}

package policyslots

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Bounds of what a host reports.
const (
	MaxStatuses = 16
	MaxModules  = 16
)

// FreshFor is how long a report of a host counts as its present state.
const FreshFor = 10 * time.Second

// IdleAfter is how long a candidate that is active on some hosts waits for the hosts
// that are still trying it because they get too few calls: a replica of the last stage
// proposes no boundary, and one that is never overloaded selects no bid.
const IdleAfter = 30 * time.Second

// Report is the last report of one host about its slots.
type Report struct {
	Node     string
	At       time.Time
	Statuses []lifecycle.SlotStatus
}

// Status returns the reported status of a slot; ok is false if the report has none.
func (r Report) Status(k lifecycle.Kind) (s lifecycle.SlotStatus, ok bool) {
	i := slices.IndexFunc(r.Statuses, func(s lifecycle.SlotStatus) bool { return s.Kind == k })
	if i < 0 {
		return lifecycle.SlotStatus{}, false
	}
	return r.Statuses[i], true
}

// EncodeStatus returns the message that reports a slot, with its modules in ascending
// generation, at most MaxModules. Until a generation has answered live calls, Calls and
// Faults count the recorded calls on which it was tried.
func EncodeStatus(s lifecycle.SlotStatus) *api.SlotStatus {
	out := &api.SlotStatus{
		Kind: string(s.Kind), Active: uint64(s.Active), Candidate: uint64(s.Candidate), Permille: uint32(s.Permille),
		Scope: s.Scope, Floor: uint64(s.Floor), Refused: cleantext.Printable(s.Refused, MaxReason), Host: s.Host,
	}
	for _, m := range s.Modules[:min(len(s.Modules), MaxModules)] {
		f := m.Figures
		out.Modules = append(out.Modules, &api.ModuleStatus{
			Generation: uint64(m.Generation), Phase: m.Phase.String(), Reached: m.Reached.String(), Goal: m.Goal.String(), Permille: uint32(m.Permille),
			Name: m.Name, Version: m.Version, Sha256: m.SHA256[:], Reason: cleantext.Printable(m.Reason, MaxReason),
			Blocked: cleantext.Printable(m.Blocked, MaxReason), Inconclusive: cleantext.Printable(m.Inconclusive, MaxReason),
			Calls: cmp.Or(m.Calls, f.Calls), Faults: cmp.Or(m.Faults, f.Faults), Descheduled: m.Starved,
			Differ: f.Differ, Worse: f.Worse, Compared: f.Compared, SinceUnixMillis: m.SinceUnixMillis,
		})
	}
	slices.SortFunc(out.Modules, func(a, b *api.ModuleStatus) int { return cmp.Compare(a.Generation, b.Generation) })
	return out
}

// DecodeStatuses decodes the slots that a host reports. Out-of-bounds values are
// shortened or left out, and dropped counts them; the report is never refused because
// of them.
func DecodeStatuses(list []*api.SlotStatus) (out []lifecycle.SlotStatus, dropped int) {
	for _, m := range list {
		kind := lifecycle.Kind(m.GetKind())
		twice := slices.ContainsFunc(out, func(s lifecycle.SlotStatus) bool { return s.Kind == kind })
		if !kind.Known() || twice || len(out) == MaxStatuses {
			dropped++
			continue
		}
		s := lifecycle.SlotStatus{
			Kind: kind, Active: lifecycle.Generation(m.GetActive()), Candidate: lifecycle.Generation(m.GetCandidate()),
			Permille: int(min(m.GetPermille(), lifecycle.Permilles)), Scope: cleantext.Printable(m.GetScope(), MaxName),
			Floor: lifecycle.Generation(m.GetFloor()), Refused: cleantext.Printable(m.GetRefused(), MaxReason), Host: cleantext.Printable(m.GetHost(), MaxName),
		}
		for _, l := range m.GetModules() {
			_, twice := s.Module(lifecycle.Generation(l.GetGeneration()))
			if l.GetGeneration() == 0 || twice || len(s.Modules) == MaxModules {
				dropped++
				continue
			}
			s.Modules = append(s.Modules, decodeModule(l))
		}
		out = append(out, s)
	}
	return out, dropped
}

func decodeModule(m *api.ModuleStatus) lifecycle.Status {
	s := lifecycle.Status{
		Generation: lifecycle.Generation(m.GetGeneration()), Phase: lifecycle.ParsePhase(m.GetPhase()), Reached: lifecycle.ParsePhase(m.GetReached()),
		Permille: int(min(m.GetPermille(), lifecycle.Permilles)), Name: cleantext.Printable(m.GetName(), MaxName), Version: cleantext.Printable(m.GetVersion(), MaxName),
		Reason: cleantext.Printable(m.GetReason(), MaxReason), Blocked: cleantext.Printable(m.GetBlocked(), MaxReason), Inconclusive: cleantext.Printable(m.GetInconclusive(), MaxReason),
		Calls: m.GetCalls(), Faults: m.GetFaults(), Starved: m.GetDescheduled(), SinceUnixMillis: max(0, m.GetSinceUnixMillis()),
		Figures: lifecycle.Figures{Differ: m.GetDiffer(), Worse: m.GetWorse(), Compared: m.GetCompared()},
	}
	s.Goal, _ = lifecycle.ParseGoal(m.GetGoal()) // 0 for a goal that this version does not know
	copy(s.SHA256[:], m.GetSha256())
	return s
}

// wasTried reports whether a generation got beyond warm on a host.
func wasTried(m lifecycle.Status) bool {
	return m.Reached > lifecycle.Warm || m.Calls > 0 || m.Faults > 0
}

// decided reports whether a generation made decisions on a host, if only for some
// calls.
func decided(m lifecycle.Status) bool {
	return m.Reached == lifecycle.Active || m.Calls > 0 || m.Faults > 0
}

// Verdict is what the reports mean for a candidate.
type Verdict uint8

// The verdicts.
const (
	Wait   Verdict = iota // there is no candidate, or it is being tried
	Stable                // all hosts run it
	Failed                // it failed on one host
)

// Judge returns what the hosts' reports mean for the candidate, with a reason when it
// has failed.
//
// It is stable when its goal is to be active and every host that has the slot, and
// reported within FreshFor, reports it as active; at least one host must. Where the
// kind decides for many requests, hosts outside the scope of the canary stay in canary,
// so they need only be ready for it. The same holds for hosts that still try it when it
// has been active on others for IdleAfter: they get fewer calls than their promotion
// gate requires. But Judge waits for a host that tries it and reports Blocked or
// Inconclusive, until that host rejects it or finds nothing against it.
//
// It has failed when one host rejected it in a phase after warm. An earlier failure may
// be caused by the host itself, and is only displayed.
func (s Slot) Judge(now time.Time, reports []Report) (Verdict, string) {
	if s.Candidate == nil {
		return Wait, ""
	}
	active, idle, undecided, others := 0, 0, 0, 0
	longActive := false // on some host, for longer than IdleAfter
	for _, r := range reports {
		status, ok := r.Status(s.Kind)
		if !ok {
			continue
		}
		own, _ := status.Module(s.Candidate.Generation)
		if own.Phase == lifecycle.Rejected && wasTried(own) {
			return Failed, fmt.Sprintf("%s: %s", r.Node, own.Why())
		}
		trying := own.Phase == lifecycle.Shadow || own.Phase == lifecycle.Canary
		switch {
		case now.Sub(r.At) > FreshFor:
		case status.Refused != "":
			others++
		case status.Active == s.Candidate.Generation:
			active++
			since := time.UnixMilli(own.SinceUnixMillis)
			longActive = longActive || own.SinceUnixMillis != 0 && now.Sub(since) > IdleAfter
		case trying && (own.Blocked != "" || own.Inconclusive != ""):
			undecided++
		case !s.Kind.PerRequest() && status.Candidate == s.Candidate.Generation && own.Figures.Compared == 0:
		case trying:
			idle++
		default:
			others++
		}
	}
	// The clocks of hosts may be wrong; the time of the goal comes from the control
	// plane's clock.
	if longActive = longActive && now.Sub(s.Candidate.Since) > IdleAfter; idle > 0 && !longActive || undecided > 0 {
		return Wait, ""
	}
	if s.Candidate.Goal == lifecycle.ToActive && active > 0 && others == 0 {
		return Stable, ""
	}
	return Wait, ""
}

// Blocked returns why a generation would be rejected if it had to leave shadow: the
// first host that reported so within FreshFor, and how many other hosts did; "" if none
// did.
func Blocked(k lifecycle.Kind, g lifecycle.Generation, now time.Time, reports []Report) string {
	why, _, _ := against(k, g, now, reports, blockedReason)
	return why
}

// Rejected returns why hosts have rejected a generation: the reason of the first host that
// reported one within FreshFor, and how many others did; "" if none did. everywhere says
// that no host runs or tries the generation.
func Rejected(k lifecycle.Kind, g lifecycle.Generation, now time.Time, reports []Report) (why string, everywhere bool) {
	why, found, known := against(k, g, now, reports, func(m lifecycle.Status) string {
		if m.Phase != lifecycle.Rejected {
			return ""
		}
		return cmp.Or(m.Why(), "no reason was reported")
	})
	return why, found > 0 && found == known
}

// against returns why hosts object to a generation, how many do, and how many know the
// generation. reason returns the objection of one host, or "". Replicas of one host count once.
func against(k lifecycle.Kind, g lifecycle.Generation, now time.Time, reports []Report, reason func(lifecycle.Status) string) (why string, found, known int) {
	hosts := make(map[string]bool)
	for _, r := range reports {
		status, _ := r.Status(k)
		m, ok := status.Module(g)
		if !ok || now.Sub(r.At) > FreshFor || status.Host != "" && hosts[status.Host] {
			continue
		}
		hosts[status.Host] = true
		known++
		if text := reason(m); text != "" {
			if found++; found == 1 {
				why = fmt.Sprintf("%s: %s", cmp.Or(status.Host, r.Node), text)
			}
		}
	}
	switch others := found - 1; {
	case others == 1:
		why += "; 1 other host reports the same"
	case others > 1:
		why += fmt.Sprintf("; %d other hosts report the same", others)
	}
	return why, found, known
}

// blockedReason returns what blocks a generation that is in shadow, and its reason.
func blockedReason(m lifecycle.Status) string {
	switch {
	case m.Phase != lifecycle.Shadow || m.Blocked == "":
		return ""
	case m.Reason != "":
		return m.Blocked + "; " + m.Reason
	}
	return m.Blocked
}

// Broken returns why the stable generation must be rolled back, with the host that
// rejected it, or "" if it need not be. As for a candidate, one host is enough that
// rejected it after it had decided there, because it decides the same everywhere. An
// earlier failure may be caused by the host itself, and is only displayed. A plan guard
// without a previous one stays, and denies every plan where it does not run: without it
// every plan would be allowed.
func (s Slot) Broken(reports []Report) string {
	if s.Stable == nil || s.Kind == lifecycle.Guard && s.Previous == nil {
		return ""
	}
	for _, r := range reports {
		status, _ := r.Status(s.Kind)
		if m, ok := status.Module(s.Stable.Generation); ok && m.Phase == lifecycle.Rejected && decided(m) {
			return fmt.Sprintf("%s: %s", r.Node, m.Reason)
		}
	}
	return ""
}

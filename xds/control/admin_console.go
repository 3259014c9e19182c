package control

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Bounds of what the console shows: a page has no room for more, and each viewer gets all of it in
// every interval.
const (
	consoleHistory    = 24 // decisions of each model
	consoleMigrations = 40
	consoleHosts      = 24 // of each policy slot
	consoleWindow     = time.Minute
)

// consoleSource provides what the console shows.
type consoleSource struct{ c *Control }

// View implements console.Source. It reads what others have published, and waits for no one.
func (s consoleSource) View(now time.Time) console.View {
	st := s.c.Status()
	v := console.View{
		Name: s.c.cfg.Name, Status: shown(st), Advice: make(map[string]console.Advice), Models: []console.Model{},
		Slots: slotsOf(s.c.Policies().Slots), Mixes: s.mixes(),
	}
	for _, f := range st.Faults {
		v.Advice[f.Kind], _ = console.AdviceFor(f.Kind)
	}
	recent := s.c.fleet.Migrations(time.Time{}, maxMigrations)
	_, running := s.c.fleet.MigrationTotals(now)
	v.Migrations = migrationsOf(recent, running, now)
	for _, m := range st.Models {
		model := consoleModelOf(*s.c.fleet.Snapshot().Model(m.Name))
		model.Moves = movesOf(m, recent, now)
		plans := s.c.PlanHistory(m.Name)
		model.History, model.Former = decisionsOf(plans.Decisions), epochsOf(plans.History)
		v.Models = append(v.Models, model)
	}
	return v
}

// shown returns a status without what the page does not show and what a large fleet has most of: the replicas of former
// plans, and the transports between each two.
func shown(st Status) Status {
	trim := func(list []Replica) []Replica {
		list = slices.Clone(list)
		for i := range list {
			list[i].Transports = nil
		}
		return list
	}
	st.History, st.Models = nil, slices.Clone(st.Models)
	for i := range st.Models {
		m := &st.Models[i]
		m.Unassigned, m.Stages = trim(m.Unassigned), slices.Clone(m.Stages)
		for j := range m.Stages {
			m.Stages[j].Replicas = trim(m.Stages[j].Replicas)
		}
	}
	return st
}

func (s consoleSource) mixes() []string {
	if s.c.cfg.Mixes == nil {
		return []string{}
	}
	return s.c.cfg.Mixes.Names()
}

// consoleModelOf returns what the status does not have of a model, without its moves and its history.
func consoleModelOf(m fleet.ModelState) console.Model {
	out := console.Model{Service: consoleServiceOf(m.Service), Buckets: []console.Bucket{}}
	for b, low := range m.Flow.Edges {
		out.Buckets = append(out.Buckets, console.Bucket{Low: low, Arrivals: rounded(m.Flow.Arrivals[b]), Tokens: rounded(m.Flow.Tokens[b])})
	}
	return out
}

func consoleServiceOf(s fleet.Service) console.Service {
	return console.Service{
		Answers: s.FirstToken.Total(), Refused: s.Refused, Failed: s.Failed,
		FirstTokenP50: rounded(s.FirstToken.Quantile(0.5)), FirstTokenP95: rounded(s.FirstToken.Quantile(0.95)),
		PerTokenP50: rounded(s.PerToken.Quantile(0.5)), PerTokenP95: rounded(s.PerToken.Quantile(0.95)),
	}
}

func consoleStageOf(i int, st policies.Stage) console.Stage {
	s := stageOf(i, st)
	return console.Stage{Name: s.Name, Low: s.Low, High: s.High, Replicas: len(st.Replicas)}
}

func setReason(s *console.Stage, r *StageReason) {
	s.Known, s.Requests, s.Tokens, s.MergedWith = true, rounded(r.Requests), rounded(r.Tokens), r.MergedWith
	if r.CostRise != nil {
		rise := rounded(*r.CostRise)
		s.CostRise = &rise
	}
}

// epochsOf returns the epochs of former plans.
func epochsOf(plans []FormerPlan) []policies.Epoch {
	out := make([]policies.Epoch, len(plans))
	for i, p := range plans {
		out[i] = p.Epoch
	}
	return out
}

// movesOf counts a model's migrations between stages that were reported within the window.
func movesOf(m Model, recent []loadreport.Migration, now time.Time) []console.Move {
	stages := make(map[policies.ReplicaID]int)
	for i, st := range m.Stages {
		for _, r := range st.Replicas {
			stages[r.ID] = i
		}
	}
	for _, r := range m.Unassigned {
		stages[r.ID] = -1
	}
	counts := make(map[[2]int]int)
	for _, g := range recent {
		from, known := stages[g.From]
		to, also := stages[g.To]
		if known && also && g.Cause != loadreport.CausePrefix && g.State == loadreport.MigrationDone && now.Sub(g.Reported) < consoleWindow {
			counts[[2]int{from, to}]++
		}
	}
	out := []console.Move{}
	for k, n := range counts {
		out = append(out, console.Move{From: k[0], To: k[1], Count: n})
	}
	slices.SortFunc(out, func(a, b console.Move) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return out
}

// migrationsOf returns the latest migrations and the sums of the window.
func migrationsOf(recent []loadreport.Migration, running int, now time.Time) console.Migrations {
	out := console.Migrations{Running: running, Latest: []loadreport.Migration{}}
	var stalls []float64
	for _, g := range recent {
		if g.Cause == loadreport.CausePrefix {
			if g.Ended() && now.Sub(g.Reported) < consoleWindow {
				out.CopiesTried++
				if g.State == loadreport.MigrationDone {
					out.Copied++
				}
			}
			continue
		}
		if len(out.Latest) < consoleMigrations {
			out.Latest = append(out.Latest, g)
		}
		if now.Sub(g.Reported) >= consoleWindow {
			continue
		}
		switch g.State {
		case loadreport.MigrationDone:
			out.Done++
			stalls = append(stalls, g.Stall)
		case loadreport.MigrationAborted:
			out.Aborted++
		}
	}
	if slices.Sort(stalls); len(stalls) > 0 {
		out.StallP50, out.StallP99 = rounded(stalls[(len(stalls)*50+99)/100-1]), rounded(stalls[(len(stalls)*99+99)/100-1])
	}
	return out
}

// decisionsOf returns the latest decisions, newest first.
func decisionsOf(all []Decision) []console.Decision {
	out := []console.Decision{}
	for _, d := range slices.Backward(all) {
		if len(out) == consoleHistory {
			break
		}
		entry := console.Decision{
			Time: d.Time, Epoch: d.Epoch, Decision: cmp.Or(d.Decision, "changed"), Reason: d.Reason, By: d.By, Times: d.Times,
			Gain: rounded(d.Gain), Predicted: rounded(d.Predicted), Observed: rounded(d.Observed),
		}
		if !d.Until.IsZero() {
			entry.Time = d.Until
		}
		for _, st := range d.Stages {
			entry.Stages = append(entry.Stages, console.Stage{Name: st.Name, Low: st.Low, High: st.High, Replicas: len(st.Replicas)})
		}
		out = append(out, entry)
	}
	return out
}

// slotsOf returns the policy slots with the phases of their modules on the hosts.
func slotsOf(slots []PolicySlot) []console.Slot {
	out := []console.Slot{}
	for _, s := range slots {
		slot := console.Slot{Slot: string(s.Slot), Stable: "native", Nodes: len(s.Nodes), Phases: []console.SlotPhase{}, Hosts: []console.SlotHost{}}
		candidate := lifecycle.Native
		if s.Stable != nil {
			slot.Stable = describeModule(*s.Stable)
		}
		if t := s.Candidate; t != nil {
			slot.Candidate, candidate = describeModule(t.PolicyModule)+", to "+t.Goal.String(), t.Generation
			if t.Permille > 0 {
				slot.Candidate += fmt.Sprintf(" %d ‰", t.Permille)
			}
			if t.Scope != "" {
				slot.Candidate += " in " + t.Scope
			}
		}
		phases := make(map[[2]string]int)
		for _, n := range s.Nodes {
			host := slotHostOf(n, candidate)
			if n.Refused != "" {
				slot.Refusing++
			}
			phases[[2]string{host.Module, host.Phase}]++
			slot.Hosts = append(slot.Hosts, host)
		}
		for k, n := range phases {
			slot.Phases = append(slot.Phases, console.SlotPhase{Module: k[0], Phase: k[1], Hosts: n})
		}
		slices.SortFunc(slot.Phases, func(a, b console.SlotPhase) int {
			return cmp.Or(cmp.Compare(b.Hosts, a.Hosts), cmp.Compare(a.Module, b.Module), cmp.Compare(a.Phase, b.Phase))
		})
		slices.SortStableFunc(slot.Hosts, func(a, b console.SlotHost) int { return compareBool(b.Problem != "", a.Problem != "") })
		slot.Hosts = slot.Hosts[:min(len(slot.Hosts), consoleHosts)]
		out = append(out, slot)
	}
	return out
}

// slotHostOf describes a slot on a host: the module that is promoted if there is one, else the one
// that decides.
func slotHostOf(n PolicyNode, candidate lifecycle.Generation) console.SlotHost {
	out := console.SlotHost{Host: n.Node, Module: generationName(n.Active), Phase: "active", Problem: n.Refused}
	if n.Refused != "" {
		out.Phase = "refused"
		return out
	}
	if m, ok := n.Module(candidate); ok && candidate != lifecycle.Native {
		out.Module, out.Phase = generationName(m.Generation), m.Phase.String()
		out.Problem = cmp.Or(m.Blocked, m.Inconclusive)
		if m.Phase.Ended() {
			out.Problem = cmp.Or(m.Reason, m.Phase.String())
		}
	}
	return out
}

// generationName names a generation of a slot.
func generationName(g lifecycle.Generation) string {
	if g == lifecycle.Native {
		return "native"
	}
	return "generation " + strconv.FormatUint(uint64(g), 10)
}

func describeModule(m PolicyModule) string {
	return fmt.Sprintf("%s %s, %s", m.Name, m.Version, generationName(m.Generation))
}

// compareBool orders false before true.
func compareBool(a, b bool) int { return cmp.Compare(boolValue(a), boolValue(b)) }

// rounded returns x with four digits: more take room in every event and are not shown.
func rounded(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

package policyslots

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
)

// start is the time at which every test begins.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// generation returns a test module.
func generation(g lifecycle.Generation) Module {
	return Module{
		Generation: g, Name: fmt.Sprintf("m%d", g), Version: "1.0", SHA256: lifecycle.Digest{byte(g)}, Size: 10,
		Signature: []byte(fmt.Sprintf("signed %d", g)), Signers: []string{"ops"}, At: start,
	}
}

// TestScenarios runs testdata/*.txt (package datadriven; -rewrite rewrites the expected
// output): each command is an event, and prints the resulting slot or error.
//
//	kind KIND                begins with an empty slot of the kind
//	push GEN GOAL [PERMILLE] [scope=S], goal GEN GOAL [PERMILLE] [scope=S]
//	rollback [GEN], promote GEN, withdraw GEN, revoke GEN
//	wait SECONDS
//	node NAME ACTIVE[/CANDIDATE] [host=H] [GEN:PHASE:REACHED[:SECONDS IN
//	     IT[:blocked|inconclusive|compared]]]
//	                         what a host reports
//	judge                    prints what the reports mean
//	blocked GEN              prints why a generation would be rejected
//	decode                   decodes the message for hosts after the edits in the lines
//	                         below (testkit.EditMessage)
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		r := &runner{slot: Slot{Kind: lifecycle.BidSelect}, now: start}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			words := []string{d.Cmd}
			for _, arg := range d.CmdArgs {
				words = append(words, arg.String())
			}
			if d.Cmd == "decode" {
				return r.decode(t, strings.Split(d.Input, "\n")) + "\n"
			}
			return r.run(t, words) + "\n"
		})
	})
}

type runner struct {
	slot    Slot
	now     time.Time
	reports []Report
}

func (r *runner) run(t *testing.T, words []string) string {
	number := func(i int) lifecycle.Generation {
		if i >= len(words) {
			return 0
		}
		n, err := strconv.ParseUint(words[i], 10, 64)
		if err != nil {
			t.Fatalf("%v: %v", words, err)
		}
		return lifecycle.Generation(n)
	}
	goal := func() (g lifecycle.Goal, permille int, scope string) {
		g, _ = lifecycle.ParseGoal(words[2])
		for _, w := range words[3:] {
			if s, ok := strings.CutPrefix(w, "scope="); ok {
				scope = s
			} else {
				permille, _ = strconv.Atoi(w)
			}
		}
		return g, permille, scope
	}
	next, err := r.slot, error(nil)
	switch words[0] {
	case "kind":
		next = Slot{Kind: lifecycle.Kind(words[1])}
	case "push":
		g, permille, scope := goal()
		next, err = r.slot.Push(Trial{Module: generation(number(1)), Goal: g, Permille: permille, Scope: scope, Since: r.now})
	case "goal":
		g, permille, scope := goal()
		next, err = r.slot.SetGoal(r.now, number(1), g, permille, scope)
	case "rollback":
		next, err = r.slot.Rollback(r.now, number(1), "because", "ops")
	case "promote":
		next, err = r.slot.Promote(number(1))
	case "withdraw":
		next, err = r.slot.Withdraw(r.now, number(1), "a trap", "fleet")
	case "revoke":
		next, err = r.slot.Revoke(r.now, number(1), "a trap", "fleet")
	case "wait":
		r.now = r.now.Add(time.Duration(number(1)) * time.Second)
	case "node":
		r.node(words)
		return "ok"
	case "blocked":
		return cmp.Or(Blocked(r.slot.Kind, number(1), r.now, r.reports), "not blocked")
	case "judge":
		verdict, why := r.slot.Judge(r.now, r.reports)
		out := strings.TrimSpace([...]string{"wait", "stable", "failed"}[verdict] + " " + why)
		if why := r.slot.Broken(r.reports); why != "" {
			out += "; broken " + why
		}
		return out
	default:
		t.Fatalf("%v", words)
	}
	if err != nil {
		return "error: " + err.Error()
	}
	if err := next.Validate(); err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	r.slot = next
	return show(r.slot)
}

// decode edits the message of the slot and returns why it cannot be decoded.
func (r *runner) decode(t *testing.T, edits []string) string {
	m := testkit.Must(testkit.EditMessage(Encode(r.slot.Spec(func(lifecycle.Digest) []byte { return nil })), edits...))
	if _, err := Decode(m); err != nil {
		return strings.ReplaceAll(err.Error(), "\u00a0", " ") // package protobuf varies the space
	}
	return "ok"
}

func (r *runner) node(words []string) {
	first, second, _ := strings.Cut(words[2], "/")
	active, _ := strconv.ParseUint(first, 10, 64)
	candidate, _ := strconv.ParseUint(second, 10, 64)
	s := lifecycle.SlotStatus{Kind: r.slot.Kind, Active: lifecycle.Generation(active), Candidate: lifecycle.Generation(candidate)}
	for _, w := range words[3:] {
		if host, ok := strings.CutPrefix(w, "host="); ok {
			s.Host = host
			continue
		}
		p := strings.Split(w, ":")
		g, _ := strconv.ParseUint(p[0], 10, 64)
		l := lifecycle.Status{Generation: lifecycle.Generation(g), Phase: lifecycle.ParsePhase(p[1]), Reached: lifecycle.ParsePhase(p[2]), Reason: "it trapped"}
		if len(p) > 3 {
			age, _ := strconv.Atoi(p[3])
			l.SinceUnixMillis = r.now.Add(-time.Duration(age) * time.Second).UnixMilli()
		}
		if len(p) > 4 {
			l.Figures.Compared, l.Reason = 3, ""
			switch p[4] {
			case "blocked":
				l.Blocked = "3 of 3 worse"
			case "inconclusive":
				l.Inconclusive, l.Reason = "3 of 3 worse", "too few"
			}
		}
		s.Modules = append(s.Modules, l)
	}
	r.reports = slices.DeleteFunc(r.reports, func(o Report) bool { return o.Node == words[1] })
	r.reports = append(r.reports, Report{Node: words[1], At: r.now, Statuses: []lifecycle.SlotStatus{s}})
}

// show describes a slot in one line.
func show(s Slot) string {
	var out []string
	for _, m := range s.modules() {
		w := fmt.Sprintf("%s %d", m.place, m.Generation)
		if m.place == "candidate" {
			w += " to " + s.Candidate.Goal.String()
			if s.Candidate.Permille > 0 {
				w += fmt.Sprintf(" %d‰", s.Candidate.Permille)
			}
			if s.Candidate.Scope != "" {
				w += " in " + s.Candidate.Scope
			}
		}
		out = append(out, w)
	}
	for _, e := range s.Ended {
		out = append(out, fmt.Sprintf("ended %d (%s)", e.Generation, e.By))
	}
	if out == nil {
		out = []string{"native"}
	}
	return strings.Join(out, ", ") + fmt.Sprintf("; floor %d", s.Floor)
}

// TestOrders applies random orders. After each of them the slot keeps its invariants,
// no generation that was rolled back or replaced is offered again, and the message for
// hosts can be decoded.
func TestOrders(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		s := Slot{Kind: lifecycle.Kinds()[rnd.IntN(len(lifecycle.Kinds()))]}
		gone := map[lifecycle.Generation]bool{}
		now := start
		for step := range 60 {
			now = now.Add(time.Second)
			g := lifecycle.Generation(rnd.Uint64N(uint64(s.Floor) + 3))
			goals := []lifecycle.Goal{lifecycle.ToWarm, lifecycle.ToShadow, lifecycle.ToCanary, lifecycle.ToActive, lifecycle.ToStable, 99}
			goal, permille, scope := goals[rnd.IntN(len(goals))], 0, ""
			if s.Kind.PerRequest() {
				permille = rnd.IntN(1100)
			} else if rnd.IntN(4) > 0 {
				scope = "here"
			}
			var next Slot
			var err error
			switch rnd.IntN(6) {
			case 0, 1:
				m := generation(g)
				m.Generation = g
				next, err = s.Push(Trial{Module: m, Goal: goal, Permille: permille, Scope: scope})
			case 2:
				next, err = s.SetGoal(now, g*lifecycle.Generation(rnd.IntN(2)), goal, permille, scope)
			case 3:
				next, err = s.Rollback(now, g*lifecycle.Generation(rnd.IntN(2)), "because\nof it", "ops")
			case 4:
				next, err = s.Promote(g)
			default:
				next, err = s.Withdraw(now, g, "a trap", "fleet")
			}
			if err != nil {
				if !reflect.DeepEqual(next, s) {
					t.Fatalf("seed %d, step %d: %v changed the slot", seed, step, err)
				}
				continue
			}
			before := s
			s = next
			if err := s.Validate(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if s.Floor < before.Floor {
				t.Fatalf("seed %d, step %d: the floor falls", seed, step)
			}
			there := map[lifecycle.Generation]bool{}
			for _, m := range s.modules() {
				there[m.Generation] = true
				if gone[m.Generation] {
					t.Fatalf("seed %d, step %d: generation %d is back", seed, step, m.Generation)
				}
			}
			for _, m := range before.modules() {
				if !there[m.Generation] {
					gone[m.Generation] = true
				}
			}
			w := s.Spec(func(lifecycle.Digest) []byte { return nil })
			got, err := Decode(Encode(w))
			if err != nil || !reflect.DeepEqual(got, w) {
				t.Fatalf("seed %d, step %d: %v\n%+v\n%+v", seed, step, err, got, w)
			}
		}
	}
}

// TestMessage checks that the message contains small modules and the hash of larger
// ones, and that decoding an encoded slot gives the same slot.
func TestMessage(t *testing.T) {
	code := []byte("\x00asm....")
	s := Slot{Kind: "partition"}
	before, stable := generation(1), generation(2)
	before.Signature = []byte("what was stable before")
	for _, step := range []Trial{
		{Module: before, Goal: lifecycle.ToStable},
		{Module: stable, Goal: lifecycle.ToStable},
		{Module: generation(3), Goal: lifecycle.ToActive, Scope: "llama"},
	} {
		var err error
		if s, err = s.Push(step); err != nil {
			t.Fatal(err)
		}
	}
	s.Candidate.Configuration = []byte{1, 2, 3}
	s.Candidate.Size = MaxInline + 1
	w := s.Spec(func(lifecycle.Digest) []byte { return code })
	if w.Candidates[0].Module == nil || w.Candidates[1].Module != nil || string(w.Previous) != "what was stable before" {
		t.Fatalf("%+v", w)
	}
	got, err := Decode(Encode(w))
	testkit.NoError(t, err)
	w.Candidates[0].SHA256 = got.Candidates[0].SHA256 // the hash of the bytes
	if !reflect.DeepEqual(got, w) {
		t.Errorf("%+v\n%+v", got, w)
	}
	for name, kind := range map[string]lifecycle.Kind{"cascade.policy.bid-select.v1": "bid-select", "cascade.length.v1": "", "cascade.policy..v1": ""} {
		if got, ok := KindOf(name); got != kind && ok {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

// TestDecodeStatuses checks that out-of-bounds values are dropped and that the report
// is never refused.
func TestDecodeStatuses(t *testing.T) {
	modules := make([]*api.ModuleStatus, MaxModules+2)
	for i := range modules {
		modules[i] = &api.ModuleStatus{Generation: uint64(i), Reason: strings.Repeat("x\n", MaxReason), Permille: 1e9, Sha256: []byte{1}}
	}
	got, dropped := DecodeStatuses([]*api.SlotStatus{
		{Kind: "place", Modules: modules}, {Kind: "place"}, {Kind: "what"}, {Kind: "guard", Active: 3, Refused: "no\x00"},
	})
	if len(got) != 2 || dropped != 4 || len(got[0].Modules) != MaxModules || got[1].Refused != "no " || len(got[0].Modules[0].Reason) != MaxReason || got[0].Modules[0].Permille != 1000 {
		t.Errorf("%d dropped, %+v", dropped, got)
	}
}

// TestStatuses checks that a control plane reads what a host reports.
func TestStatuses(t *testing.T) {
	s := lifecycle.SlotStatus{Kind: "place", Host: "h", Active: 6, Candidate: 7, Permille: 3, Scope: "s", Floor: 8, Refused: "too old", Modules: []lifecycle.Status{{
		Generation: 7, Phase: lifecycle.Canary, Reached: lifecycle.Canary, Goal: lifecycle.ToActive, Permille: 5, Name: "n", Version: "1.0",
		SHA256: lifecycle.Digest{1}, SinceUnixMillis: 9, Reason: "few calls", Blocked: "3 worse", Inconclusive: "1 worse",
		Calls: 50, Faults: 1, Starved: 2, Figures: lifecycle.Figures{Compared: 31, Differ: 13, Worse: 12},
	}}}
	got, dropped := DecodeStatuses([]*api.SlotStatus{EncodeStatus(s)})
	if want := []lifecycle.SlotStatus{s}; dropped != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d dropped\n%+v\n%+v", dropped, got, want)
	}
}

// TestEncodeStatusCutsNoCharacter checks that a report with a long reason in any script can be sent: Protobuf refuses a
// whole message for one string that is not valid UTF-8.
func TestEncodeStatusCutsNoCharacter(t *testing.T) {
	for _, reason := range []string{"x" + strings.Repeat("é", MaxReason), strings.Repeat("é", 256)[:511], "\xff"} {
		m := EncodeStatus(lifecycle.SlotStatus{Kind: "place", Refused: reason, Modules: []lifecycle.Status{{Reason: reason, Blocked: reason, Inconclusive: reason}}})
		if _, err := proto.Marshal(m); err != nil {
			t.Errorf("%.10q: %v", reason, err)
		}
		if got := m.GetModules()[0].GetReason(); len(got) > MaxReason || len(got) < min(len(reason), MaxReason)-1 {
			t.Errorf("%.10q: %d bytes of %d are left", reason, len(got), len(reason))
		}
	}
}

func TestErrors(t *testing.T) {
	s := Slot{Kind: "guard"}
	if _, err := s.Rollback(start, 0, "", ""); !errors.Is(err, ErrNative) {
		t.Error(err)
	}
	if _, err := s.SetGoal(start, 0, lifecycle.ToWarm, 0, ""); !errors.Is(err, ErrNoCandidate) {
		t.Error(err)
	}
	s, _ = s.Push(Trial{Module: generation(7), Goal: lifecycle.ToWarm})
	for _, change := range []func(*Module){
		func(m *Module) { m.SHA256[0]++ }, func(m *Module) { m.Signature = []byte("another") }, func(m *Module) { m.Configuration = []byte("another") },
	} {
		other := generation(7)
		change(&other)
		if _, err := s.Push(Trial{Module: other, Goal: lifecycle.ToWarm}); !errors.Is(err, ErrReplayed) {
			t.Error(err)
		}
	}
	if _, err := s.Promote(7); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
}

// FuzzSlotMessage checks that every decoded message keeps the invariants of a SlotSpec
// and decodes to the same after it was encoded.
func FuzzSlotMessage(f *testing.F) {
	s := Slot{Kind: "refine"}
	s, _ = s.Push(Trial{Module: generation(1), Goal: lifecycle.ToStable})
	s, _ = s.Push(Trial{Module: generation(2), Goal: lifecycle.ToStable})
	s, _ = s.Push(Trial{Module: generation(3), Goal: lifecycle.ToActive, Scope: "n"})
	for _, code := range [][]byte{nil, []byte("code")} {
		body, _ := proto.Marshal(Encode(s.Spec(func(lifecycle.Digest) []byte { return code })))
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m := new(api.SlotSpec)
		if proto.Unmarshal(body, m) != nil {
			return
		}
		w, err := Decode(m)
		if err != nil {
			return
		}
		stable := 0
		for i, c := range w.Candidates {
			if c.Stable {
				stable++
			}
			if i > 0 && c.Generation <= w.Candidates[i-1].Generation || c.Generation == 0 || c.SHA256 == (lifecycle.Digest{}) && c.Module != nil {
				t.Fatalf("%+v", w)
			}
			if slices.ContainsFunc(w.RolledBack, func(e lifecycle.RolledBackModule) bool { return e.Generation == c.Generation }) {
				t.Fatalf("%+v", w)
			}
		}
		if stable > 1 || len(w.Candidates)-stable > 1 {
			t.Fatalf("%+v", w)
		}
		if got, err := Decode(Encode(w)); err != nil || !reflect.DeepEqual(got, w) {
			t.Fatalf("%v\n%+v\n%+v", err, got, w)
		}
	})
}

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// chunk is an engine's event in the tests' notation.
type chunk struct {
	leg    string // named in the event's id
	prompt []uint32
	ids    []uint32
	noIDs  bool // the event lists no ids at all
	text   string
	finish bool
	abort  bool // the finish reason is that of an engine that is stopped
	usage  bool
	done   bool
	failed int // the code of an error event, 0 for none
}

// parse returns the event in the form that a machine receives.
func (c chunk) parse(t testing.TB) *openai.Chunk {
	head := fmt.Sprintf(`"id":"cmpl-%s","created":1,"model":"m"`, c.leg)
	data := ""
	switch {
	case c.done:
		data = "[DONE]"
	case c.failed > 0:
		data = fmt.Sprintf(`{"error":{"message":"no","code":%d}}`, c.failed)
	case c.usage:
		data = fmt.Sprintf(`{%s,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`, head, 1, 3, 2)
	default:
		finish := "null"
		if c.finish {
			finish = `"length"`
		} else if c.abort {
			finish = `"abort"`
		}
		ids := `,"token_ids":` + list(c.ids)
		if c.noIDs {
			ids = ""
		}
		data = fmt.Sprintf(`{%s,"choices":[{"index":0,"text":%q,"finish_reason":%s%s}],"prompt_token_ids":%s}`, head, c.text, finish, ids, list(c.prompt))
	}
	ev := testkit.Must(openai.NewReader(strings.NewReader("data: " + data + "\n\n")).Next())
	parsed := new(openai.Chunk)
	if err := parsed.Parse(ev); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return parsed
}

func list(ids []uint32) string {
	if ids == nil {
		return "null"
	}
	b, _ := json.Marshal(ids)
	return string(b)
}

// textOf returns the text that the client receives with a chunk.
func textOf(t testing.TB, a Action) string {
	var answer struct{ Choices []struct{ Text string } }
	raw := strings.TrimPrefix(strings.TrimSpace(string(a.Chunk.Append(nil, *a.Edit))), "data: ")
	if err := json.Unmarshal([]byte(raw), &answer); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	if len(answer.Choices) == 0 {
		return ""
	}
	return answer.Choices[0].Text
}

// resume returns the state that is kept to resume a request, for limit tokens.
func resume(t testing.TB, limit int) openai.Resume {
	req := testkit.Must(new(openai.Fields).Parse(openai.Completions, fmt.Appendf(nil, `{"model":"m","prompt":"x","stream":true,"max_tokens":%d}`, limit)))
	r, ok := req.Resume()
	if !ok {
		t.Fatal("the request cannot be resumed")
	}
	return r
}

// engine is the engine of a leg. The next token is a function of all tokens before it, so that a
// continuation from wrong ids is detected, and every third token ends inside a character.
type engine struct {
	name    string
	ids     []uint32
	prompt  int // how many of ids belong to the engine's prompt
	limit   int // ids at the end of the answer
	pending string
	sent    int  // events so far
	ending  int  // events after the finish reason
	failed  bool // it has reported its failure: only [DONE] follows
}

func follow(ids []uint32) uint32 {
	h := uint32(2166136261)
	for _, id := range ids {
		h = (h ^ id) * 16777619
	}
	return h>>8%997 + 1
}

// say returns the text that a token adds.
func (e *engine) say(id uint32) string {
	if id%3 == 0 {
		e.pending += "e"
		return ""
	}
	s := fmt.Sprintf("%s w%d", e.pending, id)
	e.pending = ""
	return s
}

// next returns the engine's next event with n tokens.
func (e *engine) next(n int) chunk {
	e.sent++
	if e.failed {
		return chunk{leg: e.name, done: true}
	}
	if len(e.ids) >= e.limit {
		if e.ending++; e.ending == 1 {
			return chunk{leg: e.name, usage: true}
		}
		return chunk{leg: e.name, done: true}
	}
	c := chunk{leg: e.name}
	if e.sent == 1 {
		c.prompt = e.ids
	}
	for ; n > 0 && len(e.ids) < e.limit; n-- {
		id := follow(e.ids)
		e.ids = append(e.ids[:len(e.ids):len(e.ids)], id)
		c.ids, c.text = append(c.ids, id), c.text+e.say(id)
	}
	if c.finish = len(e.ids) == e.limit; c.finish {
		c.text += e.pending
	}
	return c
}

// resumeAt returns an engine that continues ids. It completes a character that the
// ids from origin on have begun.
func resumeAt(name string, ids []uint32, origin, limit int) *engine {
	e := &engine{name: name, ids: ids, prompt: len(ids), limit: limit}
	for _, id := range ids[origin:] {
		e.say(id)
	}
	return e
}

// simulation is a machine with a driver that takes every decision from a script.
type simulation struct {
	t      testing.TB
	m      *Machine
	c      *checker
	script []byte

	trace     []string // of the steps
	want      []uint32 // the ids of the answer
	text      string   // text of the answer
	got       string   // text that the client has received
	failed    bool     // the client has received an engine's error
	directive Action   // the directive that the pump has not answered yet
	engines   int
	migration policies.Epoch // epoch of the latest migration
	live      bool           // whether that migration is live
	frozen    []uint32       // the request's ids at the freeze, nil before it
	checked   []uint32       // the ids whose text is to be checked, nil for none

	migrated, rescued, concluded, finished int
}

var errEngine = errors.New("engine lost")

const (
	origin = 3
	limit  = 60
)

func newSimulation(t testing.TB, script []byte) *simulation {
	s := &simulation{t: t, script: script}
	mode := s.choose(4)
	asked := openai.Edit{HideUsage: true, HideIDs: mode%2 == 0}
	s.m = New(Config{Self: "r0", Endpoint: openai.Completions, Asked: asked, Resume: resume(t, limit-origin), CanRescue: mode < 3})
	s.c = newChecker(s.m)
	reference := resumeAt("", []uint32{11, 12, 13}, origin, limit)
	for len(reference.ids) < limit {
		s.text += reference.next(1).text
	}
	s.want = reference.ids
	e := resumeAt("e0", []uint32{11, 12, 13}, origin, limit)
	s.step(Event{Kind: LegOpened, Leg: e, Chunk: e.next(1).parse(t), Replica: "r0"})
	return s
}

// choose takes a decision between n choices from the script; it returns 0 at the end of the script.
func (s *simulation) choose(n int) int {
	if len(s.script) == 0 {
		return 0
	}
	b := s.script[0]
	s.script = s.script[1:]
	return int(b) % n
}

func (s *simulation) replica() policies.ReplicaID {
	return policies.ReplicaID(fmt.Sprint("r", s.choose(4)))
}

// newEngine returns the next engine. An engine that does not know where the output begins loses a
// character in the middle of which ids end.
func (s *simulation) newEngine(ids []uint32, knowsOutput bool) *engine {
	s.engines++
	from := len(ids)
	if knowsOutput {
		from = origin
	}
	return resumeAt(fmt.Sprint("e", s.engines), ids, from, limit)
}

// step steps the machine and records its actions.
func (s *simulation) step(ev Event) {
	s.t.Helper()
	acts, err := s.c.step(ev)
	s.trace = append(s.trace, fmt.Sprintf("event %d -> %v %v", ev.Kind, s.m.state, describe(acts)))
	if err != nil {
		s.fatalf("%v", err)
	}
	for _, a := range acts {
		switch a.Kind {
		case Write:
			s.failed = s.failed || a.Chunk.Failure() != nil
			if s.got += textOf(s.t, a); !strings.HasPrefix(s.text, s.got) {
				s.fatalf("the client reads %q of %q", s.got, s.text)
			}
		case WriteDone:
			if s.failed {
				break
			}
			if s.got != s.text || !equal(a.IDs, s.want) {
				s.fatalf("[DONE] after %q with %d ids, want %q with %d", s.got, len(a.IDs), s.text, len(s.want))
			}
			s.finished++
		case Report:
			if a.Loss == Concluded {
				s.concluded++
			}
		case RescueEnded:
			if a.Rescue.Err == nil {
				s.rescued++
			}
		case MigrationBegan:
			s.migration, s.live, s.frozen = a.Migration, ev.Length > 0, nil
		case MigrationRenewed:
			s.migration = a.Migration
		case StreamFrozen:
			s.frozen = a.IDs
		case CheckText:
			s.checked = a.IDs
		case MigrationEnded:
			if a.Err == nil {
				s.migrated++
			}
		}
		if isDirective(a.Kind) {
			s.directive = a
		}
	}
	if ids, _ := s.m.IDs(); len(ids) > len(s.want) || !equal(ids, s.want[:len(ids)]) {
		s.fatalf("the stream's ids are %v, want a prefix of %v", ids, s.want)
	}
}

// fatalf fails the test and shows the latest steps.
func (s *simulation) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf(format+"; the latest steps:\n%s", append(args, strings.Join(s.trace[max(0, len(s.trace)-12):], "\n"))...)
}

func equal(a, b []uint32) bool { return list(a) == list(b) }

// answer answers the pump's directive, with success unless the script decides otherwise.
func (s *simulation) answer() {
	bad := s.choose(12) == 11
	switch a := s.directive; a.Kind {
	case Read:
		e := a.Leg.(*engine)
		switch {
		case !s.c.legs[a.Leg] && s.choose(2) == 0:
			// The leg was closed, but its buffer still held an event.
			s.step(Event{Kind: ChunkArrived, Leg: e, Chunk: e.next(1).parse(s.t)})
		case !s.c.legs[a.Leg] || bad && s.choose(2) == 0:
			s.step(Event{Kind: LegEnded, Leg: e, Err: io.EOF})
		case bad:
			e.failed = true
			s.step(Event{Kind: ChunkArrived, Leg: e, Chunk: chunk{failed: 500}.parse(s.t)})
		default:
			s.step(Event{Kind: ChunkArrived, Leg: e, Chunk: e.next(1 + s.choose(3)).parse(s.t)})
		}
	case Resume:
		if bad && s.choose(4) == 0 {
			s.step(Event{Kind: ClientFailed, Err: errEngine})
			return
		}
		s.step(Event{Kind: Resumed})
	case Wait:
		if !s.m.migrating() {
			s.step(Event{Kind: Resumed})
		}
	case Seek:
		if bad {
			s.step(Event{Kind: NoReplica})
			return
		}
		s.step(Event{Kind: ReplicaFound, Replica: s.replica()})
	case Open:
		if bad {
			s.step(Event{Kind: OpenFailed, Err: errEngine})
			return
		}
		e := s.newEngine(a.IDs, !a.Aligned)
		s.step(Event{Kind: LegOpened, Leg: e, Chunk: e.next(1 + s.choose(2)).parse(s.t), Replica: a.Replica})
	}
}

// disturb steps the machine with an event that may come from any goroutine.
func (s *simulation) disturb() {
	if s.checked != nil && s.choose(2) == 0 {
		s.answerCheck()
		return
	}
	switch s.choose(6) {
	case 0, 1:
		ev := Event{Kind: MigrationRequested, From: s.m.Holder(), Epoch: s.m.Epoch()}
		switch s.choose(4) {
		case 0:
			ev.Epoch--
		case 1:
			ids, _ := s.m.IDs()
			ev.Length = min(len(ids)+s.choose(3), len(s.want))
			if ev.Hash = prefix.Hash(0).Extend(s.want[:ev.Length]...); s.choose(8) == 7 {
				ev.Hash++
			}
		}
		s.step(ev)
	case 2:
		s.step(Event{Kind: FreezeRequested, Migration: s.migration})
	case 3:
		if s.frozen == nil {
			return
		}
		e := s.newEngine(s.frozen, s.live)
		s.step(Event{Kind: MigrationLegOpened, Migration: s.migration, Leg: e, Chunk: e.next(1).parse(s.t), Replica: s.replica(), Cached: -1})
	case 4:
		switch s.choose(4) {
		case 0:
			s.step(Event{Kind: MigrationRetried, Migration: s.migration})
		case 1:
			s.step(Event{Kind: MigrationFailed, Migration: s.migration, Err: errEngine})
		}
	case 5:
		if s.choose(64) == 63 {
			s.step(Event{Kind: RequestEnded, Err: context.Canceled})
		}
	}
}

// answerCheck answers CheckText. Most ids end with a character.
func (s *simulation) answerCheck() {
	ev := Event{Kind: TextChecked, Migration: s.migration, Aligned: s.checked[len(s.checked)-1]%3 != 0}
	if s.choose(8) == 7 {
		ev.Err = errEngine
	}
	s.checked = nil
	s.step(ev)
}

// run plays the script, and then chooses success until the stream has ended.
func (s *simulation) run() {
	s.t.Helper()
	for len(s.script) > 0 && s.directive.Kind != End {
		if s.choose(2) == 0 {
			s.answer()
		} else {
			s.disturb()
		}
	}
	for n := 0; s.directive.Kind != End; n++ {
		if n > 1000 {
			s.fatalf("the stream does not end: state %v, directive %v", s.m.state, s.directive.Kind)
		}
		if s.directive.Kind == Wait && s.m.migrating() {
			s.step(Event{Kind: MigrationFailed, Migration: s.migration, Err: errEngine})
		}
		s.answer()
	}
	s.step(Event{Kind: HandlerReturned})
	if s.c.migrations != 0 || s.c.rescues != 0 {
		s.fatalf("after the end, %d migrations and %d rescues are under way", s.c.migrations, s.c.rescues)
	}
}

// TestEventOrders plays random orders of all events on machines with simulated engines: in every
// order, the client receives the answer's tokens once and in order, and the invariants hold after
// each step. CASCADE_TEST_ALL=1 plays 3,000 orders, otherwise 1,000.
func TestEventOrders(t *testing.T) {
	orders := 1000
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		orders = 3000
	}
	var sum simulation
	for seed := range uint64(orders) {
		rng := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 40+rng.IntN(500))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		s := newSimulation(t, script)
		s.run()
		sum.migrated += s.migrated
		sum.rescued += s.rescued
		sum.concluded += s.concluded
		sum.finished += s.finished
	}
	t.Logf("%d migrations, %d rescues, %d conclusions, %d whole answers", sum.migrated, sum.rescued, sum.concluded, sum.finished)
	if sum.migrated < orders/6 || sum.rescued < orders/6 || sum.concluded < orders/1000 || sum.finished < orders/6 {
		t.Error("the orders miss something")
	}
}

// FuzzEventOrders is TestEventOrders for orders that a fuzzer finds.
func FuzzEventOrders(f *testing.F) {
	f.Add([]byte{0, 1, 0, 3, 1, 2, 0, 0, 0, 0, 1, 3, 1})
	f.Add([]byte{1, 0, 11, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 2000 {
			return
		}
		newSimulation(t, script).run()
	})
}

// isDirective reports whether the pump answers the action with its next event.
func isDirective(k ActionKind) bool { return k >= Read && k <= End }

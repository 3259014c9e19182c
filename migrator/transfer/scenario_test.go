package transfer_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scenarios")

// TestScenarios plays every testdata/*.txt on one machine named a. A line is
// an event or, after ">", an action that the event before must have caused; "#"
// begins a comment. Times are in milliseconds. The lines:
//
//	config rounds=1 …            sets Config fields, before the first event
//	at 5                         time of the events from here on
//	export a/1 b q frontend=f epoch=3 length=100 engine=7 via=shm,tcp pinned=seed
//	import b/1 b engine=7 via=shm
//	from b open a/1 engine=7 via=shm     a message, with its fields
//	listed a/1 from=0 computed=64 generation=1 partial=1 | frozen …
//	prepared b/1 | verified b/1 round=1 | corrupt b/1 round=1 | action-failed b/1 failure=out of blocks
//	adopt b/1 f
//	switch-result b/1 committed epoch=4 stall=9 | holder-result b/1 reverted epoch=3
//	abort a/1 | gone b | tick
//	next                         prints the time of the next tick
//
// An engine is its fingerprint; its blocks have 16 tokens.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(text), "\n")
			for i := range max(len(gotLines), len(wantLines)) {
				g, w := "(end)", "(end)"
				if i < len(gotLines) {
					g = gotLines[i]
				}
				if i < len(wantLines) {
					w = wantLines[i]
				}
				if g != w {
					t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, g, w)
				}
			}
		})
	}
}

// play runs a scenario and returns it with the actions that it causes.
func play(t *testing.T, text string) string {
	c := transfer.Config{Self: "a"}
	var m *transfer.Machine
	var now policies.Micros
	var out []string
	for n, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, ">") {
			continue
		}
		out = append(out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		fail := func(err error) {
			if err != nil {
				t.Fatalf("line %d: %q: %v", n+1, line, err)
			}
		}
		switch words[0] {
		case "config":
			fail(configure(&c, words[1:]))
			continue
		case "at":
			at, err := strconv.ParseFloat(words[1], 64)
			fail(err)
			now = policies.Micros(at * 1000)
			continue
		}
		if m == nil {
			var err error
			m, err = transfer.New(c)
			fail(err)
		}
		if words[0] == "next" {
			next := "> never"
			if at, ok := m.Next(); ok {
				next = "> " + millis(at)
			}
			out = append(out, next)
			continue
		}
		ev, err := parseEvent(words)
		fail(err)
		ev.Now = now
		for _, a := range m.Step(ev, nil) {
			out = append(out, "> "+describe(a))
		}
		fail(m.Check())
	}
	return strings.Join(out, "\n")
}

func configure(c *transfer.Config, words []string) error {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		switch name {
		case "rounds":
			c.MaxRounds = n
		case "tail":
			c.TailBlocks = n
		default:
			return fmt.Errorf("no field %s", name)
		}
	}
	return nil
}

var eventNames = map[string]transfer.EventKind{
	"export": transfer.ExportStarted, "import": transfer.ImportStarted, "abort": transfer.AbortRequested, "listed": transfer.Listed, "frozen": transfer.Frozen,
	"prepared": transfer.Prepared, "verified": transfer.Verified, "corrupt": transfer.Corrupt, "action-failed": transfer.ActionFailed, "adopt": transfer.AdoptRequested,
	"switch-result": transfer.SwitchResult, "holder-result": transfer.HolderResult, "from": transfer.Received, "gone": transfer.Gone, "tick": transfer.Ticked,
}

// parseEvent reads one line of a scenario.
func parseEvent(words []string) (ev transfer.Event, err error) {
	kind, ok := eventNames[words[0]]
	if !ok {
		return ev, fmt.Errorf("no such event")
	}
	ev.Kind = kind
	var plain []string
	fields := map[string]string{}
	last := ""
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok {
			fields[name], last = value, name
		} else if last != "" {
			fields[last] += " " + w // "failure=out of blocks"
		} else {
			plain = append(plain, w)
		}
	}
	number := func(name string) uint64 {
		if fields[name] == "" {
			return 0
		}
		n, e := strconv.ParseUint(fields[name], 10, 64)
		if e != nil {
			err = e
		}
		return n
	}
	engine := transfer.Engine{Fingerprint: number("engine"), BlockTokens: 16}
	if engine.Fingerprint == 0 {
		engine = transfer.Engine{}
	}
	var via []string
	if fields["via"] != "" {
		via = strings.Split(fields["via"], ",")
	}
	span := transfer.Span{From: number("from"), Computed: number("computed"), Length: number("length"), Generation: number("generation"), Hash: tokenhash.Hash(number("hash"))}
	failure := transfer.Failure(0)
	for w := transfer.UnknownToPeer; w <= transfer.HeldElsewhere; w++ {
		if w.String() == fields["failure"] {
			failure = w
		}
	}
	mode := map[string]transfer.Mode{"live": transfer.Live, "reprompt": transfer.Reprompt}[fields["mode"]]
	epoch, round, stall := policies.Epoch(number("epoch")), uint32(number("round")), 1000*policies.Micros(number("stall"))
	at := 0
	switch kind {
	case transfer.Received:
		msg := transfer.Message{From: policies.ReplicaID(plain[0]), To: "a", Round: round, Failure: failure, Epoch: epoch, Request: fields["request"],
			FrontEnd: policies.ReplicaID(fields["frontend"]), Target: policies.ReplicaID(fields["target"]), Mode: mode, Engine: engine, Transports: via, Span: span, Stall: stall}
		for k := transfer.Open; k <= transfer.Abort+1; k++ {
			if k.String() == plain[1] {
				msg.Kind = k
			}
		}
		if msg.Kind == transfer.Open {
			msg.VersionMin, msg.VersionMax = transfer.VersionMin, transfer.VersionMax
			if fields["version"] != "" {
				msg.VersionMin = uint32(number("version"))
				msg.VersionMax = msg.VersionMin
			}
		}
		msg.Deal, err = parseDeal(plain[2])
		ev.Message = msg
		return ev, err
	case transfer.Gone:
		ev.Peer = policies.ReplicaID(plain[0])
		return ev, nil
	case transfer.Ticked:
		return ev, nil
	case transfer.ExportStarted:
		ev.Peer = policies.ReplicaID(plain[1])
		ev.Request = transfer.Request{ID: plain[2], FrontEnd: policies.ReplicaID(fields["frontend"]), Epoch: epoch, Length: span.Length}
		if fields["pinned"] != "" {
			ev.Request.Pinned = policies.PinReasonOf(policies.Seed)
		}
		ev.Engine, ev.Transports = engine, via
	case transfer.ImportStarted, transfer.AdoptRequested:
		ev.Peer = policies.ReplicaID(plain[1])
		ev.Engine, ev.Transports = engine, via
		ev.Request.ID = fields["request"]
	case transfer.SwitchResult, transfer.HolderResult:
		for k := transfer.Open; k <= transfer.Abort; k++ {
			if k.String() == plain[1] {
				ev.Answer = k
			}
		}
		ev.Epoch, ev.Stall = epoch, stall
	default:
		ev.Span, ev.Round, ev.Failure, ev.Partial = span, round, failure, fields["partial"] != ""
	}
	if err == nil {
		ev.Deal, err = parseDeal(plain[at])
	}
	return ev, err
}

func parseDeal(s string) (bidask.Deal, error) {
	seller, number, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 64)
	return bidask.Deal{Seller: policies.ReplicaID(seller), Number: n}, err
}

func millis(t policies.Micros) string { return strconv.FormatFloat(float64(t)/1000, 'f', -1, 64) }

// describe writes an action on one line.
func describe(a transfer.Action) string {
	var b strings.Builder
	word := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	span := func(s transfer.Span) {
		for _, f := range []struct {
			name string
			n    uint64
		}{{"from", s.From}, {"computed", s.Computed}, {"length", s.Length}, {"generation", s.Generation}, {"hash", uint64(s.Hash)}} {
			if f.n != 0 {
				word(" %s=%d", f.name, f.n)
			}
		}
	}
	offers := func(o []transport.Offer) {
		if o != nil {
			word(" %d offers", len(o))
		}
	}
	message := func(msg transfer.Message) {
		word("%v %v", msg.Kind, msg.Deal)
		if msg.Request != "" {
			word(" %s", msg.Request)
		}
		if msg.FrontEnd != "" {
			word(" frontend=%s", msg.FrontEnd)
		}
		if msg.Target != "" {
			word(" target=%s", msg.Target)
		}
		if msg.Epoch != 0 {
			word(" epoch=%d", msg.Epoch)
		}
		if msg.Mode != 0 {
			word(" mode=%v", msg.Mode)
		}
		if msg.Round != 0 {
			word(" round=%d", msg.Round)
		}
		if msg.Engine.Fingerprint != 0 {
			word(" engine=%d", msg.Engine.Fingerprint)
		}
		if msg.Transports != nil {
			word(" via=%s", strings.Join(msg.Transports, ","))
		}
		span(msg.Span)
		if msg.Stall != 0 {
			word(" stall=%s", millis(msg.Stall))
		}
		offers(msg.Offers)
		if msg.Failure != 0 {
			word(": %v", msg.Failure)
		}
	}
	switch a.Kind {
	case transfer.Send:
		word("to %s ", a.Message.To)
		message(a.Message)
		return b.String()
	case transfer.SwitchHolder:
		word("switch-holder of %s: ", a.Peer)
		message(a.Message)
		word(" until %s", millis(a.Deadline))
		return b.String()
	}
	word("%v %v", a.Kind, a.Deal)
	if a.Peer != "" {
		word(" with %s", a.Peer)
	}
	if a.Request != "" {
		word(" %s", a.Request)
	}
	if a.Epoch != 0 {
		word(" epoch=%d", a.Epoch)
	}
	if a.Round != 0 {
		word(" round=%d", a.Round)
	}
	span(a.Span)
	offers(a.Offers)
	if a.Last {
		word(" the last")
	}
	if a.Deadline != 0 {
		word(" until %s", millis(a.Deadline))
	}
	if a.Stall != 0 {
		word(" stall=%s", millis(a.Stall))
	}
	if a.Failure != 0 {
		word(": %v", a.Failure)
	}
	return b.String()
}

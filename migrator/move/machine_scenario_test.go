package move

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestScenarios runs testdata/*.txt on one machine named a (package datadriven; -rewrite
// rewrites the expected output). The output of an event is the actions that it causes.
// Times are in milliseconds. The commands:
//
//	config tail=20               sets Config.TailBlocks, before the first event
//	at 5                         time of the events from here on
//	export a/1 b q frontend=f epoch=3 length=100 engine=7 via=(shm, tcp) pinned=seed keeps-kv=1
//	import b/1 b engine=7 via=shm
//	from b open a/1 engine=7 via=shm     a message, with its fields
//	listed a/1 from=0 computed=64 generation=1 partial=1 | frozen …
//	prepared b/1 | verified b/1 round=1 | action-failed b/1 failure=(out of blocks)
//	adopt b/1 f
//	switch-result b/1 committed epoch=4 stall=9 | holder-result b/1 reverted epoch=3
//	abort a/1 | gone b | tick
//	next                         prints the time of the next tick
//
// An engine is its fingerprint; its blocks have 16 tokens.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		p := &player{config: Limits{Self: "a"}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := p.do(d)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

// player is the machine of one scenario; nil before its first event.
type player struct {
	config  Limits
	machine *Machine
	now     policies.Micros
}

// do runs one command.
func (p *player) do(d *datadriven.TestData) (out string, err error) {
	l := readLine(d)
	switch d.Cmd {
	case "config":
		p.config.TailBlocks = int(l.number("tail"))
		return "", l.err
	case "at":
		at, err := strconv.ParseFloat(l.plain[0], 64)
		p.now = policies.Micros(at * 1000)
		return "", err
	}
	if p.machine == nil {
		p.machine = newMachine(p.config)
	}
	if d.Cmd == "next" {
		if at, ok := p.machine.Next(); ok {
			return millis(at), nil
		}
		return "never", nil
	}
	ev, err := l.event(d.Cmd)
	if err != nil {
		return "", err
	}
	ev.Now = p.now
	for _, a := range p.machine.Step(ev) {
		out += describe(a) + "\n"
	}
	return out, p.machine.Check()
}

var eventNames = map[string]EventKind{
	"export": ExportStarted, "import": ImportStarted, "abort": AbortRequested, "listed": Listed, "frozen": Frozen,
	"prepared": Prepared, "verified": Verified, "action-failed": ActionFailed, "adopt": AdoptRequested,
	"switch-result": SwitchResult, "holder-result": HolderResult, "from": Received, "gone": Gone, "tick": Ticked,
}

// line is the arguments of a command, with and without values.
type line struct {
	plain  []string
	fields map[string][]string
	err    error // of the first field that is no number
}

func readLine(d *datadriven.TestData) *line {
	l := &line{fields: map[string][]string{}}
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			l.plain = append(l.plain, arg.Key)
		}
		l.fields[arg.Key] = arg.Vals
	}
	return l
}

// text returns a field, "" if it is missing.
func (l *line) text(name string) string { return strings.Join(l.fields[name], ",") }

func (l *line) replica(name string) policies.ReplicaID { return policies.ReplicaID(l.text(name)) }

// number returns a field, 0 if it is missing.
func (l *line) number(name string) uint64 {
	if l.text(name) == "" {
		return 0
	}
	n, err := strconv.ParseUint(l.text(name), 10, 64)
	if l.err == nil {
		l.err = err
	}
	return n
}

// event returns the event of a line.
func (l *line) event(name string) (ev Event, err error) {
	ev.Kind = eventNames[name]
	engine := KVFormat{Fingerprint: l.number("engine"), BlockTokens: 16}
	if engine.Fingerprint == 0 {
		engine = KVFormat{}
	}
	span := Span{From: l.number("from"), Computed: l.number("computed"), Length: l.number("length"), Generation: l.number("generation"), Hash: prefix.Hash(l.number("hash"))}
	failure := named(UnknownToPeer, HeldElsewhere, l.text("failure"))
	epoch, round, stall := policies.Epoch(l.number("epoch")), uint32(l.number("round")), 1000*policies.Micros(l.number("stall"))
	deal := 0 // its place
	switch ev.Kind {
	case 0:
		return ev, fmt.Errorf("no such event")
	case Received:
		deal = 2
		ev.Message = Message{
			Kind: named(Open, Abort+1, l.plain[1]), From: policies.ReplicaID(l.plain[0]), To: "a", Round: round, Failure: failure, Epoch: epoch,
			Request: l.text("request"), FrontEnd: l.replica("frontend"), Target: l.replica("target"),
			Mode: map[string]Mode{"live": Live, "reprompt": Reprompt, "handoff": Handoff}[l.text("mode")], Engine: engine, Transports: l.fields["via"], Span: span, Stall: stall,
		}
		ev.Message.Connector.Name = l.text("connector")
		if ev.Message.Kind == Open {
			ev.Message.VersionMin, ev.Message.VersionMax = VersionMin, VersionMax
			if v := uint32(l.number("version")); v != 0 {
				ev.Message.VersionMin, ev.Message.VersionMax = v, v
			}
		}
	case Gone:
		ev.Peer = policies.ReplicaID(l.plain[0])
		return ev, l.err
	case Ticked:
		return ev, l.err
	case ExportStarted:
		ev.Peer, ev.Engine, ev.Transports = policies.ReplicaID(l.plain[1]), engine, l.fields["via"]
		ev.Request = Request{ID: l.plain[2], FrontEnd: l.replica("frontend"), Epoch: epoch, Length: span.Length}
		ev.Request.KeepsKV = l.number("keeps-kv") > 0
		if l.text("pinned") != "" {
			ev.Request.Pinned = policies.PinReasonOf(policies.Seed)
		}
	case ImportStarted, AdoptRequested:
		ev.Peer, ev.Engine, ev.Transports = policies.ReplicaID(l.plain[1]), engine, l.fields["via"]
		ev.Request.ID = l.text("request")
	case SwitchResult, HolderResult:
		ev.Answer, ev.Epoch, ev.Stall = named(Open, Abort, l.plain[1]), epoch, stall
		if l.text("mode") == "handoff" {
			ev.Mode = Handoff
		}
	default:
		ev.Span, ev.Round, ev.Failure, ev.Partial = span, round, failure, l.text("partial") != ""
	}
	seller, number, _ := strings.Cut(l.plain[deal], "/")
	n, err := strconv.ParseUint(number, 10, 64)
	d := bidask.Deal{Seller: policies.ReplicaID(seller), Number: n}
	if ev.Kind == Received {
		ev.Message.Deal = d
	} else {
		ev.Deal = d
	}
	if err == nil {
		err = l.err
	}
	return ev, err
}

// named returns the value of a range that has this name, 0 for none.
func named[T interface {
	~uint8
	fmt.Stringer
}](first, last T, name string) T {
	for v := first; v <= last; v++ {
		if v.String() == name {
			return v
		}
	}
	return 0
}

func millis(t policies.Micros) string { return strconv.FormatFloat(float64(t)/1000, 'f', -1, 64) }

// describe writes an action on one line. Fields that are zero are left out.
func describe(a Action) string {
	var b strings.Builder
	add := func(format string, v any) {
		if !reflect.ValueOf(v).IsZero() {
			fmt.Fprintf(&b, format, v)
		}
	}
	duration := func(format string, v policies.Micros) {
		if v != 0 {
			add(format, millis(v))
		}
	}
	span := func(s Span) {
		add(" from=%d", s.From)
		add(" computed=%d", s.Computed)
		add(" length=%d", s.Length)
		add(" generation=%d", s.Generation)
		add(" hash=%d", s.Hash)
	}
	if a.Kind == Send || a.Kind == SwitchHolder {
		msg := a.Message
		if a.Kind == Send {
			add("to %s ", msg.To)
		} else {
			add("switch-holder of %s: ", a.Peer)
		}
		fmt.Fprintf(&b, "%v %v", msg.Kind, msg.Deal)
		add(" %s", msg.Request)
		add(" frontend=%s", msg.FrontEnd)
		add(" target=%s", msg.Target)
		add(" epoch=%d", msg.Epoch)
		add(" mode=%v", msg.Mode)
		add(" round=%d", msg.Round)
		add(" engine=%d", msg.Engine.Fingerprint)
		add(" via=%s", strings.Join(msg.Transports, ","))
		span(msg.Span)
		duration(" stall=%s", msg.Stall)
		add(" target-connector=%s", msg.TargetConnector.Name)
		add(" %d offers", len(msg.Offers))
		add(": %v", msg.Failure)
		duration(" until %s", a.Deadline)
		return b.String()
	}
	fmt.Fprintf(&b, "%v %v", a.Kind, a.Deal)
	add(" with %s", a.Peer)
	add(" %s", a.Request)
	add(" epoch=%d", a.Epoch)
	add(" round=%d", a.Round)
	span(a.Span)
	add(" %d offers", len(a.Offers))
	if a.Last {
		b.WriteString(" the last")
	}
	duration(" until %s", a.Deadline)
	duration(" stall=%s", a.Stall)
	add(" mode=%v", a.Mode)
	add(": %v", a.Failure)
	return b.String()
}

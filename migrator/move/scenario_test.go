package move_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
)

// TestScenarios runs every testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output) in a fleet, in virtual time. At its end the fleet is checked as by
// runInFleet. The commands:
//
//	fleet replicas=3 link=400000 envelope=8192 breaks
//	                            replicas a, b, …; bytes per second of a link, bytes of a message, and a
//	                            transport that is preferred and breaks in pulls
//	engine b blind              serves no blocks
//	engine b context=420        has a maximum length
//	engine b stubborn           never thaws, drops or releases; "obeys" ends that
//	stream a/1 at=b prompt=50 max=250
//	for 500ms                   time passes
//	prefill b 3s                its engine computes prompts for so long
//	move a/1 to=c least=1s within=2s tokens=656 rounds=4 stall=20ms bytes-per-second=400000
//	                            migrates it from where it is; in at least and at most that time, with at least so
//	                            many tokens and rounds, and at most that stall of a move that succeeds; and in
//	                            the time that its bytes need at that rate
//	gone b a                    b's network reports that a is gone
//	stats                       prints the counters of all replicas
//	paths b                     prints the transports of b, over which it pulled and which it holds back
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/executor", func(t *testing.T, path string) {
		defer func() { breaks, envelope = false, 0 }()
		synctest.Test(t, func(t *testing.T) {
			var w *fleet
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "fleet" {
					w = newScenarioFleet(d)
					return ""
				}
				return w.do(t, d)
			})
			w.end(t)
		})
	})
}

// numbers returns the arguments name=7 of a command.
func numbers(d *datadriven.TestData) map[string]int {
	out := make(map[string]int)
	for _, arg := range d.CmdArgs {
		if n := 0; len(arg.Vals) == 1 {
			if _, err := fmt.Sscan(arg.Vals[0], &n); err == nil {
				out[arg.Key] = n
			}
		}
	}
	return out
}

// duration returns the argument name=2s of a command, most if it has none.
func duration(t *testing.T, d *datadriven.TestData, name string, most time.Duration) time.Duration {
	if !d.HasArg(name) {
		return most
	}
	var text string
	d.ScanArgs(t, name, &text)
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

func newScenarioFleet(d *datadriven.TestData) *fleet {
	n := numbers(d)
	envelope, breaks = n["envelope"], d.HasArg("breaks")
	return newFleet(n["replicas"], int64(n["link"]), carryInside)
}

func (w *fleet) do(t *testing.T, d *datadriven.TestData) string {
	n, first := numbers(d), ""
	if len(d.CmdArgs) > 0 {
		first = d.CmdArgs[0].Key
	}
	replicaAt := func(name string) *replica {
		var id string
		d.ScanArgs(t, name, &id)
		return w.replica(policies.ReplicaID(id))
	}
	var out strings.Builder
	switch d.Cmd {
	case "engine":
		e := w.replica(policies.ReplicaID(first)).engine
		e.mu.Lock()
		defer e.mu.Unlock()
		e.blind, e.stubborn, e.busy, e.connector = e.blind || d.HasArg("blind"), d.HasArg("stubborn"), d.HasArg("busy"), ""
		if d.HasArg("connector") {
			d.ScanArgs(t, "connector", &e.connector)
		}
		if n["context"] > 0 {
			e.context = n["context"]
		}
	case "stream":
		front, _, _ := strings.Cut(first, "/")
		w.replica(policies.ReplicaID(front)).frontEnd.startStream(first, prompt(n["prompt"], n["prompt"]), n["max"], replicaAt("at"))
	case "for":
		v, err := time.ParseDuration(first)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		time.Sleep(v)
	case "gone":
		w.replica(policies.ReplicaID(first)).executor.PeerGone(policies.ReplicaID(d.CmdArgs[1].Key))
		synctest.Wait()
	case "prefill":
		v, err := time.ParseDuration(d.CmdArgs[1].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.replica(policies.ReplicaID(first)).engine.prefillUntil(time.Now().Add(v))
	case "move":
		front, _, _ := strings.Cut(first, "/")
		h, _ := w.replica(policies.ReplicaID(front)).frontEnd.Holder(first)
		from, to, begun := w.replica(h.Replica), replicaAt("to"), time.Now()
		w.move(first, from, to, policies.Drain)
		took := time.Since(begun)
		source, target := from.waitForEnd(t), to.waitForEnd(t)
		for _, m := range []move.Migration{source, target} {
			fmt.Fprintf(&out, "%s %s %s", m.Role, m.State, m.Mode)
			if m.Transport != "" {
				out.WriteString(" over " + m.Transport)
			}
			if m.Failure != "" {
				out.WriteString(": " + m.Failure)
			}
			out.WriteString("\n")
		}
		if source.ID != target.ID || source.FrontEnd != policies.ReplicaID(front) || target.FrontEnd != source.FrontEnd || source.From != from.id || source.To != to.id || source.Cause != policies.Drain {
			d.Fatalf(t, "\n%+v\n%+v", source, target)
		}
		if moved := source.State == "moved"; moved && (source.Stall <= 0 || source.Stall > duration(t, d, "stall", time.Second)) ||
			moved && source.Mode == "live" && (target.Bytes != int64(target.Tokens)*1000 || source.Tokens != target.Tokens+1) ||
			moved && source.Mode == "reprompt" && target.Bytes != 0 ||
			took > duration(t, d, "within", time.Minute) || took < duration(t, d, "least", 0) || target.Tokens < n["tokens"] || source.Rounds < n["rounds"] || target.Rounds < n["rounds"] {
			d.Fatalf(t, "in %v:\n%+v\n%+v", took, source, target)
		}
		if rate := n["bytes-per-second"]; rate > 0 {
			least := time.Duration(target.Bytes) * time.Second / time.Duration(rate)
			if s := to.executor.Stats(); took < least || took > least+100*time.Millisecond || s.Bytes != target.Bytes || s.Copied == 0 || s.Rounds != uint64(target.Rounds) {
				d.Fatalf(t, "in %v: %+v, %+v", took, target, s)
			}
		}
	case "stats":
		for _, r := range w.replicas {
			s := r.executor.Stats()
			fmt.Fprintf(&out, "%s: sent %v, received %v, %d stalls, %d running, %d sessions abandoned\n", r.id, s.Sent, s.Received, r.stalls.Load(), s.Running, s.SessionsAbandoned)
		}
	case "paths":
		for _, p := range w.replica(policies.ReplicaID(first)).paths.Status() {
			fmt.Fprintf(&out, "%s", p.Transport)
			if p.Peer != "" {
				fmt.Fprintf(&out, " from %s", p.Peer)
			}
			if p.Pulls > 0 {
				out.WriteString(" used")
			}
			if p.Err != nil {
				fmt.Fprintf(&out, ": %v", p.Err)
			}
			out.WriteString("\n")
		}
	default:
		d.Fatalf(t, "unknown command")
	}
	return out.String()
}

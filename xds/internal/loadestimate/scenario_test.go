package loadestimate

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/policies"
)

// TestScenarios runs testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output). The output of a command is each change of the estimate:
//
//	replica [kv=N] [batch=N] [context=N] [rate=N]   begins anew
//	claim [running=N] [waiting=N] [streams=N] [held=N] [promised=N] [bounded]
//	                   what the migrator reports from now on, four times a second
//	proxies requests=N [answers=N] [share=PERCENT]     what they report, each second
//	claim stop, proxies stop
//	for 10s            time passes
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return p.do(d) })
	})
}

type player struct {
	t         *testing.T
	replica   Replica
	estimator Estimator
	now       time.Duration
	claim     *Claim
	proxies   *ProxyReport
	last      string
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// step applies an event and returns the estimate if it changed.
func (p *player) step(ev Event) string {
	f := p.estimator.Step(zero.Add(p.now), p.replica, ev)
	line := f.Source.String()
	if f.Source != Unknown {
		line += fmt.Sprintf(" work=%d", f.Work)
	}
	if f.Counted {
		line += " (counted)"
	}
	if f.Requests > 0 {
		line += fmt.Sprintf(" requests=%d", f.Requests)
	}
	if f.Distrusted != "" {
		line += " distrusted: " + f.Distrusted
	}
	if f.Drift {
		return fmt.Sprintf("%v drift\n", p.now)
	}
	if line == p.last {
		return ""
	}
	p.last = line
	return fmt.Sprintf("%v %s\n", p.now, line)
}

func (p *player) do(d *datadriven.TestData) (out string) {
	number := make(map[string]int64)
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 1 {
			var n int64
			arg.Scan(p.t, 0, &n)
			number[arg.Key] = n
		}
	}
	tokens := func(name string) policies.Tokens { return policies.Tokens(number[name]) }
	switch d.Cmd {
	case "replica":
		p.estimator, p.last = Estimator{}, ""
		p.replica = Replica{KV: tokens("kv"), Batch: int(number["batch"]), Context: tokens("context"), Rate: float64(number["rate"]), Late: 5 * time.Second}
	case "claim":
		p.claim = &Claim{
			Running: int(number["running"]), Waiting: int(number["waiting"]), Streams: int(number["streams"]),
			Held: tokens("held"), Promised: tokens("promised"), Bounded: d.HasArg("bounded"),
		}
		if d.HasArg("stop") {
			p.claim = nil
		}
	case "proxies":
		p.proxies = &ProxyReport{Requests: int(number["requests"]), Answers: uint64(number["answers"]), Share: float64(number["share"]) / 100}
		if d.HasArg("stop") {
			p.proxies = nil
		}
	case "for":
		length, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(p.t, "%v", err)
		}
		for end := p.now + length; p.now < end; {
			p.now += 250 * time.Millisecond
			if p.claim != nil {
				out += p.step(*p.claim)
			}
			if p.now%time.Second == 0 {
				if p.proxies != nil {
					out += p.step(*p.proxies)
				}
				out += p.step(Tick{})
			}
		}
	default:
		d.Fatalf(p.t, "unknown command %q", d.Cmd)
	}
	return out
}

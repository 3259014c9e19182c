package balance

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestEstimatorScenarios runs testdata/estimator/*.txt (-rewrite rewrites the expected output). The output of
// a command is each change of the estimate:
//
//	replica [kv=N] [batch=N] [context=N] [rate=N]   begins anew
//	claim [running=N] [waiting=N] [streams=N] [held=N] [promised=N] [bounded]
//	                   what the migrator reports from now on, four times a second
//	proxies requests=N [answers=N] [share=PERCENT]     what they report, each second
//	claim stop, proxies stop
//	for 10s            time passes
func TestEstimatorScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/estimator", func(*testing.T) testkit.Player { return new(player).play })
}

type player struct {
	replica   Engine
	estimator Estimator
	now       time.Duration
	claim     *Claim
	proxies   *ProxyReport
	last      string
}

// step applies an event and returns the estimate if it changed.
func (p *player) step(ev Event) []string {
	f := p.estimator.Step(policies.Micros(p.now.Microseconds()), p.replica, ev)
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
		return []string{fmt.Sprintf("%v drift", p.now)}
	}
	if line == p.last {
		return nil
	}
	p.last = line
	return []string{fmt.Sprintf("%v %s", p.now, line)}
}

func (p *player) play(words []string) (out []string, err error) {
	number := make(map[string]int64)
	has := make(map[string]bool)
	for _, word := range words[1:] {
		name, value, given := strings.Cut(word, "=")
		has[name] = true
		if given {
			if number[name], err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, err
			}
		}
	}
	tokens := func(name string) policies.Tokens { return policies.Tokens(number[name]) }
	switch words[0] {
	case "replica":
		p.estimator, p.last = Estimator{}, ""
		p.replica = Engine{KV: tokens("kv"), Batch: int(number["batch"]), Context: tokens("context"), Rate: float64(number["rate"]), Late: 5 * policies.Second}
	case "claim":
		p.claim = &Claim{
			Running: int(number["running"]), Waiting: int(number["waiting"]), Streams: int(number["streams"]),
			Held: tokens("held"), Promised: tokens("promised"), Bounded: has["bounded"],
		}
		if has["stop"] {
			p.claim = nil
		}
	case "proxies":
		p.proxies = &ProxyReport{Requests: int(number["requests"]), Answers: uint64(number["answers"]), Share: float64(number["share"]) / 100}
		if has["stop"] {
			p.proxies = nil
		}
	case "for":
		length, err := time.ParseDuration(words[1])
		if err != nil {
			return nil, err
		}
		for end := p.now + length; p.now < end; {
			p.now += 250 * time.Millisecond
			if p.claim != nil {
				out = append(out, p.step(*p.claim)...)
			}
			if p.now%time.Second == 0 {
				if p.proxies != nil {
					out = append(out, p.step(*p.proxies)...)
				}
				out = append(out, p.step(Tick{})...)
			}
		}
	default:
		return nil, fmt.Errorf("unknown command %q", words[0])
	}
	return out, nil
}

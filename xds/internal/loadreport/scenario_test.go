package loadreport

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scenarios in testdata")

// TestScenarios plays testdata/*.txt. A line "> command" is played, the lines
// below it up to the next blank one are what became of the figure:
//
//	> replica [kv=N] [batch=N] [context=N] [rate=N]   begin
//	> claim [running=N] [waiting=N] [streams=N] [held=N] [promised=N] [bounded]
//	                     what the migrator says from now on, four times a second
//	> seen requests=N [answers=N] [share=PERCENT]     what the proxies say, each second
//	> claims stop, > seen stop
//	> for 10s            time passes; each change of the figure is told
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the scenario went differently (run with -update and read the diff):\n%s", got)
		})
	}
}

func play(t *testing.T, text string) string {
	p := &player{t: t}
	var out strings.Builder
	expected := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		command, ok := strings.CutPrefix(line, "> ")
		switch {
		case ok:
			out.WriteString(line + "\n" + p.do(command))
			expected = true
		case line == "":
			expected = false
			out.WriteString("\n")
		case !expected:
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

type player struct {
	t       *testing.T
	replica Replica
	model   Model
	now     time.Duration
	claim   *Claim
	seen    *Seen
	last    string
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// step applies an event and tells the figure if it is another one.
func (p *player) step(ev Event) string {
	f := p.model.Step(zero.Add(p.now), p.replica, ev)
	line := f.Source.String()
	if f.Source != Nobody {
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

func (p *player) do(command string) (out string) {
	f := strings.Fields(command)
	number := make(map[string]int64)
	for _, word := range f[1:] {
		if name, value, ok := strings.Cut(word, "="); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			number[name] = n
		}
	}
	tokens := func(name string) policies.Tokens { return policies.Tokens(number[name]) }
	stop := len(f) == 2 && f[1] == "stop"
	switch f[0] {
	case "replica":
		p.model, p.last = Model{}, ""
		p.replica = Replica{KV: tokens("kv"), Batch: int(number["batch"]), Context: tokens("context"), Rate: float64(number["rate"]), Late: 5 * time.Second}
	case "claim", "claims":
		p.claim = &Claim{
			Running: int(number["running"]), Waiting: int(number["waiting"]), Streams: int(number["streams"]),
			Held: tokens("held"), Promised: tokens("promised"), Bounded: strings.HasSuffix(command, "bounded"),
		}
		if stop {
			p.claim = nil
		}
	case "seen":
		p.seen = &Seen{Requests: int(number["requests"]), Answers: uint64(number["answers"]), Share: float64(number["share"]) / 100}
		if stop {
			p.seen = nil
		}
	case "for":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			p.t.Fatal(err)
		}
		for end := p.now + d; p.now < end; {
			p.now += 250 * time.Millisecond
			if p.claim != nil {
				out += p.step(*p.claim)
			}
			if p.now%time.Second == 0 {
				if p.seen != nil {
					out += p.step(*p.seen)
				}
				out += p.step(Tick{})
			}
		}
	default:
		p.t.Fatalf("unknown command %q", command)
	}
	return out
}

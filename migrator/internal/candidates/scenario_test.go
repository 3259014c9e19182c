package candidates_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/internal/candidates"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scenarios")

// TestScenarios plays every testdata/*.txt on the selector of a replica named a. A
// line changes the situation. A line that begins with ">" is an offer that the preceding scan
// must have made, and "#" begins a comment. Times are in milliseconds. The lines:
//
//	config edges=100,200 full=80 percent=25   before anything else
//	plan 1000:a,b 4000:c -:d                  stages by their ends, "-" for open
//	away b,c                                  replicas that cannot be asked; empty: all can be asked
//	draining yes | draining no
//	kv capacity=1000 held=10 promised=0 mean=5
//	r1 500 epoch=2 only=b,c            only these replicas can run it; in any order with:
//	r1 500 epoch=2 since=100 fixed            a resident; held counts it only where kv does not
//	gone r1
//	sold r1                                   its offer is over, and it has left
//	back r1 no-bids                           its offer is returned
//	at 5                                      advances the time
//	scan 10                                   makes at most that many offers; they are then for sale
//	stands r1
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
			if got != string(text) {
				t.Errorf("%s: got\n%s", file, got)
			}
		})
	}
}

var whys = map[string]bidask.ReturnReason{"no-bids": bidask.ReturnNoBids, "withdrawn": bidask.ReturnWithdrawn, "broken": bidask.ReturnTransferFailed, "rejected": bidask.ReturnRejected}

func play(t *testing.T, text string) string {
	c := candidates.Config{Self: "a"}
	detector := outlier.Detector{}
	var b *candidates.Selector
	away := map[policies.ReplicaID]bool{}
	s := candidates.Situation{Available: func(id policies.ReplicaID) bool { return !away[id] }}
	selling := map[string]policies.Migration{}
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
		number := func(text string) policies.Tokens {
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatalf("line %d: %q: %v", n+1, line, err)
			}
			return policies.Tokens(v)
		}
		if words[0] != "config" && b == nil {
			c.Detector = detector
			var err error
			if b, err = candidates.New(c); err != nil {
				t.Fatal(err)
			}
		}
		resident := func(id string) *candidates.Resident {
			for i := range s.Residents {
				if s.Residents[i].Request == id {
					return &s.Residents[i]
				}
			}
			s.Residents = append(s.Residents, candidates.Resident{Request: id})
			return &s.Residents[len(s.Residents)-1]
		}
		leave := func(id string) {
			r := *resident(id)
			s.Held -= r.Length
			for i := range s.Residents {
				if s.Residents[i].Request == id {
					s.Residents = append(s.Residents[:i], s.Residents[i+1:]...)
					break
				}
			}
			delete(selling, id)
		}
		switch words[0] {
		case "config":
			for _, w := range words[1:] {
				name, value, _ := strings.Cut(w, "=")
				switch name {
				case "edges":
					for _, e := range strings.Split(value, ",") {
						c.BucketEdges = append(c.BucketEdges, number(e))
					}
				case "full":
					c.SpillPercent = int(number(value))
				case "percent":
					detector.Percent = int(number(value))
				}
			}
		case "plan":
			s.Plan = policies.Plan{Model: "m"}
			low := policies.Tokens(0)
			for _, w := range words[1:] {
				end, names, _ := strings.Cut(w, ":")
				stage := policies.Stage{Low: low, High: policies.Unbounded}
				if end != "-" {
					stage.High = number(end)
				}
				low = stage.High
				for _, id := range strings.Split(names, ",") {
					stage.Replicas = append(stage.Replicas, policies.ReplicaID(id))
				}
				s.Plan.Stages = append(s.Plan.Stages, stage)
			}
			if err := s.Plan.Validate(); err != nil {
				t.Fatalf("line %d: %v", n+1, err)
			}
		case "away":
			clear(away)
			for _, id := range strings.Split(strings.Join(words[1:], ""), ",") {
				away[policies.ReplicaID(id)] = true
			}
		case "draining":
			s.Draining = words[1] == "yes"
		case "kv":
			for _, w := range words[1:] {
				name, value, _ := strings.Cut(w, "=")
				switch v := number(value); name {
				case "capacity":
					s.Capacity = v
				case "held":
					s.Held = v
				case "promised":
					s.Promised = v
				case "mean":
					s.Mean, s.MeanKnown = v, true
				}
			}
		case "at":
			s.Now = policies.Micros(number(words[1])) * policies.Millisecond
		case "gone", "sold":
			leave(words[1])
		case "back":
			h := selling[words[1]]
			delete(selling, words[1])
			resident(words[1]).ForSale = false
			b.RecordReturn(s.Now, h, whys[words[2]])
		case "stands":
			out = append(out, fmt.Sprintf("> %v", b.StillValid(&s, selling[words[1]])))
		case "scan":
			for _, o := range b.SelectOffers(&s, int(number(words[1]))) {
				out = append(out, fmt.Sprintf("> %s %v %v %v", o.Handover.Request, o.Handover.Length, o.Handover.Cause, o.Candidates))
				selling[o.Handover.Request] = o.Handover
				resident(o.Handover.Request).ForSale = true
			}
		default:
			r := resident(words[0])
			length := number(words[1])
			s.Held += length - r.Length
			r.Length = length
			for _, w := range words[2:] {
				name, value, _ := strings.Cut(w, "=")
				switch name {
				case "epoch":
					r.Epoch = policies.Epoch(number(value))
				case "since":
					r.Since = policies.Micros(number(value)) * policies.Millisecond
				case "only":
					only := strings.Split(value, ",")
					r.CanRunOn = func(id policies.ReplicaID) bool { return slices.Contains(only, string(id)) }
				case "fixed":
					r.Pinned = policies.PinReasonOf(policies.Structured)
				}
			}
		}
	}
	return strings.Join(out, "\n")
}

func TestConfig(t *testing.T) {
	for _, bad := range []candidates.Config{{}, {Self: "a", Cooldown: -1}, {Self: "a", SpillPercent: -1}, {Self: "a", BucketEdges: []policies.Tokens{2, 1}}} {
		if _, err := candidates.New(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

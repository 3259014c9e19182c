package bidask

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestSelectorScenarios runs every testdata/selector/*.txt (-rewrite rewrites the expected output) on the
// selector of a replica named a. Times are in milliseconds. The commands:
//
//	config edges=100,200 full=80 percent=25   before anything else
//	plan 1000:a,b 4000:c -:d                  stages by their ends, "-" for open
//	away b c                                  replicas that cannot be asked; none: all can be asked
//	draining yes | draining no
//	prefill yes | prefill no                  whether it is a prefill replica
//	kv capacity=1000 held=10 shared=0 promised=0 mean=5    held counts shared tokens twice
//	r1 500 front=b                     the replica of its front end
//	r1 500 epoch=2 only=b,c            only these replicas can run it; in any order with:
//	r1 500 epoch=2 since=100 fixed            a resident; held counts it only where kv does not
//	gone r1
//	sold r1                                   its offer is over, and it has left
//	back r1 no-bids                           its offer is returned
//	at 5                                      advances the time
//	scan 10                                   makes at most that many offers; they are then for sale
//	stands r1                                 whether its offer is still valid
func TestSelectorScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/selector", func(*testing.T) testkit.Player {
		r := &replica{config: OfferRules{Self: "a"}, forSale: make(map[string]policies.Migration)}
		r.Available = func(id policies.ReplicaID) bool { return !slices.Contains(r.away, string(id)) }
		return r.play
	})
}

// replica is a replica as its selector sees it.
type replica struct {
	stageView
	config   OfferRules
	detector Detector
	selector *selector
	away     []string
	forSale  map[string]policies.Migration
	shared   policies.Tokens
}

// resident returns a resident, which it adds if there is none of that name.
func (r *replica) resident(id string) *candidate {
	i := slices.IndexFunc(r.Residents, func(one candidate) bool { return one.Request == id })
	if i < 0 {
		i = len(r.Residents)
		r.Residents = append(r.Residents, candidate{Request: id})
	}
	return &r.Residents[i]
}

func (r *replica) play(command []string) (out []string, err error) {
	number := func(text string) policies.Tokens {
		v, bad := strconv.ParseInt(text, 10, 64)
		err = cmp.Or(err, bad)
		return policies.Tokens(v)
	}
	millis := func(text string) policies.Micros { return policies.Micros(number(text)) * policies.Millisecond }
	var words []string
	fields := make(map[string]string)
	for _, word := range command[1:] {
		name, value, given := strings.Cut(word, "=")
		words = append(words, name)
		if given {
			fields[name] = value
		}
	}
	if r.selector == nil && command[0] != "config" {
		r.config.Detector = r.detector
		r.selector = testkit.Must(newSelector(r.config))
	}
	switch command[0] {
	case "config":
		for name, value := range fields {
			switch name {
			case "edges":
				for e := range strings.SplitSeq(value, ",") {
					r.config.BucketEdges = append(r.config.BucketEdges, number(e))
				}
			case "full":
				r.config.SpillPercent = int(number(value))
			case "percent":
				r.detector.Percent = int(number(value))
			}
		}
	case "plan":
		r.Plan = policies.Plan{Model: "m"}
		low := policies.Tokens(0)
		for _, w := range words {
			end, names, _ := strings.Cut(w, ":")
			stage := policies.Stage{Low: low, High: policies.Unbounded}
			if end != "-" {
				stage.High = number(end)
			}
			low = stage.High
			for id := range strings.SplitSeq(names, ",") {
				stage.Replicas = append(stage.Replicas, policies.ReplicaID(id))
			}
			r.Plan.Stages = append(r.Plan.Stages, stage)
		}
		err = cmp.Or(err, r.Plan.Validate())
	case "away":
		r.away = words
	case "draining":
		r.Draining = words[0] == "yes"
	case "prefill":
		r.Prefill = words[0] == "yes"
	case "kv":
		for name, value := range fields {
			switch v := number(value); name {
			case "capacity":
				r.Capacity = v
			case "held":
				r.Held = v
			case "shared":
				r.shared = v
			case "mean":
				r.Mean, r.MeanKnown = v, true
			}
		}
	case "at":
		r.Now = millis(words[0])
	case "gone", "sold":
		r.Held -= r.resident(words[0]).Length
		r.Residents = slices.DeleteFunc(r.Residents, func(one candidate) bool { return one.Request == words[0] })
		delete(r.forSale, words[0])
	case "back":
		why := map[string]ReturnReason{"no-bids": ReturnNoBids, "withdrawn": ReturnWithdrawn, "broken": ReturnTransferFailed, "rejected": ReturnRejected}[words[1]]
		r.resident(words[0]).ForSale = false
		r.selector.RecordReturn(r.Now, r.forSale[words[0]], why)
		delete(r.forSale, words[0])
	case "stands":
		r.KV = r.Held - r.shared
		out = append(out, fmt.Sprint(r.selector.StillValid(&r.stageView, r.forSale[words[0]])))
	case "scan":
		r.KV = r.Held - r.shared
		for _, o := range r.selector.SelectOffers(&r.stageView, int(number(words[0]))) {
			out = append(out, strings.TrimSuffix(fmt.Sprintln(o.Migration.Request, o.Migration.Length, o.Migration.Cause, o.Candidates), "\n"))
			r.forSale[o.Migration.Request] = o.Migration
			r.resident(o.Migration.Request).ForSale = true
		}
	default:
		one := r.resident(command[0])
		length := number(words[0])
		r.Held += length - one.Length
		one.Length = length
		for _, name := range words[1:] {
			switch value := fields[name]; name {
			case "front":
				one.FrontEnd = policies.ReplicaID(value)
			case "epoch":
				one.Epoch = policies.Epoch(number(value))
			case "since":
				one.Since = millis(value)
			case "only":
				one.CanRunOn = func(id policies.ReplicaID) bool { return slices.Contains(strings.Split(value, ","), string(id)) }
			case "fixed":
				one.Pinned = policies.PinReasonOf(policies.Structured)
			}
		}
	}
	return out, err
}

func TestOfferRules(t *testing.T) {
	for _, bad := range []OfferRules{{}, {Self: "a", SpillPercent: -1}, {Self: "a", BucketEdges: []policies.Tokens{2, 1}}} {
		if _, err := newSelector(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

package bidask_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestMachineScenarios runs testdata/machine/*.txt (-rewrite rewrites the expected output) on one machine
// named a. The output of an event is the actions that it causes. Times are in
// milliseconds. The commands:
//
//	config MaxSkips=1 paper …           sets Config fields, before the first event
//	at 5                                time of the events from here on
//	offer q1 500 growth b,c,d seed=1    a request, its length, why, and the candidates
//	offer q1 500 growth b:10,c:90       the same with what a transfer to each costs
//	end q1                              it is over or no longer for sale
//	from b bid a/0 load=10 start=5      a message; ask and confirm also name the request:
//	from b ask b/7 q9 300 spill load=9
//	reserved b/7 | refused b/7 | moved a/0 | failed a/0
//	gone b
//	measure capacity=1000 held=10 promised=0 throughput=0 draining
//	tick
//	next                                prints when to tick
func TestMachineScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata/machine", newPlayer) }

// newPlayer returns a machine named a that has seen no event.
func newPlayer(*testing.T) testkit.Player {
	c := bidask.Rules{Self: "a"}
	var m *bidask.Machine
	var now policies.Micros
	return func(words []string) (out []string, err error) {
		switch words[0] {
		case "config":
			words = slices.DeleteFunc(words[1:], func(w string) bool {
				if w == "paper" {
					c.Selector, c.Sample = bidask.Paper{}, bidask.AskAll
				}
				return w == "paper"
			})
			return nil, testkit.SetFields(&c, words)
		case "at":
			at, err := strconv.ParseFloat(words[1], 64)
			now = policies.Micros(at * 1000)
			return nil, err
		}
		if m == nil {
			if m, err = bidask.NewMachine(c); err != nil {
				return nil, err
			}
		}
		if words[0] == "next" {
			if at, ok := m.Next(); ok {
				return []string{millis(at)}, nil
			}
			return []string{"never"}, nil
		}
		ev, err := parseEvent(words)
		if err != nil {
			return nil, err
		}
		ev.Now = now
		for _, a := range m.Step(ev, nil) {
			out = append(out, describe(a))
		}
		if at, ok := m.Next(); ev.Kind == bidask.DeadlineReached && ok && at <= now {
			return out, fmt.Errorf("Next is %v after the tick at %v: its driver would tick without end", at, now)
		}
		return out, m.Check()
	}
}

var causes = map[string]policies.MigrationCause{"growth": policies.Growth, "outlier": policies.Outlier, "drain": policies.Drain, "spill": policies.Spill, "cheaper": policies.Cheaper}

// parseEvent parses one line of a scenario.
func parseEvent(words []string) (ev bidask.Event, err error) {
	if words[0] == "measure" {
		ev.Kind = bidask.OccupancyMeasured
		return ev, testkit.SetFields(&ev.Occupancy, words[1:])
	}
	if at := slices.IndexFunc(words, func(w string) bool { return strings.Contains(w, "=") }); at > 0 {
		var named struct {
			Seed  uint64
			Load  policies.Tokens
			Start policies.Micros // in milliseconds
		}
		if err := testkit.SetFields(&named, words[at:]); err != nil {
			return ev, err
		}
		ev.Seed, ev.Message.Load, ev.Message.Start, words = named.Seed, named.Load, named.Start*policies.Millisecond, words[:at]
	}
	simple := map[string]bidask.EventKind{"reserved": bidask.Reserved, "refused": bidask.ReservationRefused, "moved": bidask.TransferDone, "failed": bidask.TransferFailed}
	switch words[0] {
	case "offer":
		ev.Kind = bidask.Offered
		ev.Migration, err = parseMigration(words[1:4])
		if len(words) > 4 {
			for _, c := range strings.Split(words[4], ",") {
				id, cost, costs := strings.Cut(c, ":")
				ev.Candidates = append(ev.Candidates, policies.ReplicaID(id))
				if costs {
					n, err := strconv.Atoi(cost)
					if err != nil {
						return ev, err
					}
					ev.Costs = append(ev.Costs, policies.Micros(n))
				}
			}
		}
	case "end":
		ev.Kind, ev.Migration.Request = bidask.Withdrawn, words[1]
	case "from":
		ev.Kind = bidask.MessageReceived
		ev.Message.From, ev.Message.To = policies.ReplicaID(words[1]), "a"
		for k := bidask.Ask; k <= bidask.Drop+1; k++ {
			if k.String() == words[2] {
				ev.Message.Kind = k
			}
		}
		ev.Message.Deal, err = parseDeal(words[3])
		if err == nil && len(words) > 4 {
			ev.Message.Migration, err = parseMigration(words[4:7])
		}
	case "reserved", "refused", "moved", "failed":
		ev.Kind = simple[words[0]]
		ev.Deal, err = parseDeal(words[1])
	case "gone":
		ev.Kind, ev.Peer = bidask.PeerGone, policies.ReplicaID(words[1])
	case "tick":
		ev.Kind = bidask.DeadlineReached
	default:
		err = fmt.Errorf("no such event")
	}
	return ev, err
}

func parseMigration(words []string) (policies.Migration, error) {
	n, err := strconv.ParseInt(words[1], 10, 64)
	return policies.Migration{Request: words[0], Length: policies.Tokens(n), Cause: causes[words[2]]}, err
}

func parseDeal(s string) (bidask.Deal, error) {
	seller, number, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(number, 10, 64)
	return bidask.Deal{Seller: policies.ReplicaID(seller), Number: n}, err
}

func millis(t policies.Micros) string { return strconv.FormatFloat(float64(t)/1000, 'f', -1, 64) }

// describe writes an action on one line.
func describe(a bidask.Action) string {
	var b strings.Builder
	word := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	migration := func(m policies.Migration) { word(" %s %v %v", m.Request, m.Length, m.Cause) }
	if a.Kind == bidask.Send {
		msg := a.Message
		word("to %s %v %v", msg.To, msg.Kind, msg.Deal)
		if msg.Migration != (policies.Migration{}) {
			migration(msg.Migration)
		}
		switch msg.Kind {
		case bidask.Ask, bidask.Confirm, bidask.Bid:
			word(" load=%v", msg.Load)
		}
		if msg.Kind == bidask.Bid {
			word(" start=%s", millis(msg.Start))
		}
		return b.String()
	}
	word("%v %v", a.Kind, a.Deal)
	if a.Peer != "" {
		word(" with %s", a.Peer)
	}
	if a.Migration != (policies.Migration{}) {
		migration(a.Migration)
	}
	if a.Deadline != 0 {
		word(" until %s", millis(a.Deadline))
	}
	if a.Reason != 0 {
		word(": %v", a.Reason)
	}
	return b.String()
}

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFleetScenarios runs testdata/fleet/*.txt (package datadriven; -rewrite rewrites
// the expected output): control planes on one store, each behind a gRPC server, in a
// synctest bubble.
//
//	start a r0 r1 [shared] [counters]  starts a control plane with these replicas; with
//	                          counters it has a file for them
//	stop a, kill a            it ends; killed, it does not release the lease
//	configure a r0 r1* r2+    replaces its configured list; * marks draining, + a prefill
//	                          replica
//	report a r0 [over=s] [not-ready] [held=N] [model=x] [migrations] [times=N]
//	                          sends a report over the stream s, or else the one with
//	                          the replica's name, and prints the reply, or how the
//	                          stream ended; with times, of that many reports
//	end s [close]             waits for the end of a stream, after closing it
//	load r0 r1 held=N [not-ready]  these replicas report to all control planes, twice
//	                          a second
//	silence                   no replica reports any more
//	for 1s                    time passes
//	drain a r0, undrain a r0, pin a  an operator's order to a
//	confirm a [DIGEST]        an operator confirms the list that a holds back
//	requests a …              prints how many requests were counted
//	refuse a VERSION          a proxy of a refused this version of a cluster
//	store works|full|read-only|unreadable|slow|hung|stuck|late  what the store does;
//	                          slow: the watch delivers only with the command deliver;
//	                          hung: writes do not return, and fail then; stuck: they
//	                          are made when the store works; late: they are made after
//	                          0.1 s, and return 0.5 s after the watch has their objects
//	deliver                   delivers what the watch has read
//	write 9 r0 | r1           another server writes a plan
//	show a …                  prints the state of the control planes, and whether all
//	                          publish the same
//	leaders a …               prints how many of the control planes lead
//	migrations a              prints the reported migrations
//	log a                     prints what was logged at warn since the last call
func TestFleetScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/fleet", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.end()
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				w.out.Reset()
				w.do(d)
				return w.out.String()
			})
		})
	})
}

// TestUnansweredOrder checks the errors of an order that the store may still make, and of one that it does not make.
func TestUnansweredOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.start("a", replicas([]string{"r0"}), false, false)
		w.wait(3 * time.Second)
		w.store.mu.Lock()
		w.store.fault, w.store.works = "hung", make(chan struct{})
		w.store.mu.Unlock()
		defer close(w.store.works)
		for _, want := range []error{fleetstate.ErrUnanswered, fleetstate.ErrNotStored} {
			if err := w.planes["a"].Order(t.Context(), fleetstate.Pin{Model: "m", By: "ann"}); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}

// TestOrdersAtOnce lets two control planes write an order each at the same time: the order that loses is made again,
// on the object of the other.
func TestOrdersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.start("a", replicas([]string{"r0", "r1", "r2"}), true, false)
		w.start("b", replicas([]string{"r0", "r1", "r2"}), true, false)
		w.wait(3 * time.Second)
		w.store.mu.Lock()
		w.store.fault = "late"
		w.store.mu.Unlock()
		var orders sync.WaitGroup
		for plane, id := range map[string]policies.ReplicaID{"a": "r0", "b": "r1"} {
			orders.Go(func() { testkit.NoError(t, w.planes[plane].Order(t.Context(), fleetstate.Drain{Replica: id})) })
		}
		orders.Wait()
		w.wait(time.Second)
		for name, p := range w.planes {
			for _, r := range p.Snapshot().Models[0].Replicas {
				if r.Drained != (r.ID != "r2") {
					t.Errorf("%s: %s is drained: %v", name, r.ID, r.Drained)
				}
			}
		}
	})
}

// world is a store and the control planes that share it.
type world struct {
	t       *testing.T
	store   faultyStore
	planes  map[string]*plane
	streams map[string]api.Fleet_ReportClient
	loads   map[string]loadreport.Report // of the replicas that report twice a second
	out     strings.Builder
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: faultyStore{Store: store.New(store.NewMemory())}, planes: map[string]*plane{}, streams: map[string]api.Fleet_ReportClient{}, loads: map[string]loadreport.Report{}}
}

// end ends the control planes, after a failure too: goroutines that outlive the bubble would hide it.
func (w *world) end() {
	for _, p := range w.planes {
		p.end()
	}
}

func (w *world) do(d *datadriven.TestData) {
	var words, options []string
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) > 0 || slices.Contains([]string{"shared", "counters", "not-ready", "migrations", "close"}, arg.Key) {
			options = append(options, arg.String())
		} else {
			words = append(words, arg.Key)
		}
	}
	var p *plane
	if len(words) > 0 {
		p = w.planes[words[0]]
	}
	switch d.Cmd {
	case "start":
		w.start(words[0], replicas(words[1:]), slices.Contains(options, "shared"), slices.Contains(options, "counters"))
	case "stop", "kill":
		p.dead = d.Cmd == "kill"
		p.end()
		delete(w.planes, words[0])
	case "configure":
		w.printError(p.SetReplicas(replicas(words[1:])))
	case "report":
		w.report(p, words[1], options)
	case "end":
		s := w.streams[words[0]]
		if slices.Contains(options, "close") {
			_ = s.CloseSend()
		}
		_, err := s.Recv()
		w.printError(err)
	case "load":
		for _, id := range words {
			r := loadreport.Report{Replica: policies.ReplicaID(id), Model: "m", EngineReady: !slices.Contains(options, "not-ready"), BytesPerToken: 3}
			r.Load = policies.Load{Running: 10, Held: policies.Tokens(option(options, "held")), Iteration: 0.02}
			r.Flow.Seen = w.loads[id].Flow.Seen
			w.loads[id] = r
		}
	case "silence":
		clear(w.loads)
	case "for":
		length, err := time.ParseDuration(words[0])
		if err != nil {
			d.Fatalf(w.t, "%v", err)
		}
		w.wait(length)
	case "drain":
		w.printError(p.Order(w.t.Context(), fleetstate.Drain{Replica: policies.ReplicaID(words[1])}))
	case "undrain":
		w.printError(p.Order(w.t.Context(), fleetstate.Undrain{Replica: policies.ReplicaID(words[1])}))
	case "pin":
		w.printError(p.Order(w.t.Context(), fleetstate.Pin{Model: "m", By: "ann"}))
	case "confirm":
		digest := "none"
		if h := p.Snapshot().Held; h != nil {
			digest = h.Digest
		}
		w.printError(p.Order(w.t.Context(), fleetstate.ConfirmRemoval{Digest: cmp.Or(strings.Join(words[1:], ""), digest)}))
	case "requests":
		for _, name := range words {
			fmt.Fprintf(&w.out, "%s: %d\n", name, w.planes[name].Snapshot().Models[0].Seen)
		}
	case "store":
		w.store.mu.Lock()
		if w.store.works != nil {
			close(w.store.works)
			w.store.works = nil
		}
		switch w.store.fault = words[0]; words[0] {
		case "slow":
			w.store.delivered = make(chan struct{})
		case "hung", "stuck":
			w.store.works = make(chan struct{})
		}
		w.store.mu.Unlock()
	case "deliver":
		w.store.delivered <- struct{}{}
	case "write":
		w.write(words)
	case "show":
		w.show(words)
	case "leaders":
		n := 0
		for _, name := range words {
			if w.planes[name].Snapshot().Leadership.Leading {
				n++
			}
		}
		fmt.Fprintln(&w.out, n)
	case "migrations":
		for _, m := range p.Migrations(time.Time{}, 10) {
			fmt.Fprintf(&w.out, "%s %s\n", m.ID, m.State)
		}
		ended, running := p.MigrationTotals(time.Now())
		fmt.Fprintf(&w.out, "%d kinds ended, %d running\n", len(ended), running)
	case "log":
		// Temporary files have other names each time.
		all, printed := p.log.String(), make(map[string]bool)
		for line := range strings.Lines(regexp.MustCompile(`tmp\d+`).ReplaceAllString(all[p.seen:], "tmpN")) {
			if line = line[strings.Index(line, "msg="):]; !printed[line] {
				printed[line] = true
				w.out.WriteString(line)
			}
		}
		p.seen = len(all)
	default:
		d.Fatalf(w.t, "unknown command %q", d.Cmd)
	}
	synctest.Wait()
}

func (w *world) printError(err error) {
	if err != nil {
		text := strings.ReplaceAll(status.Code(err).String()+": "+status.Convert(err).Message(), "Unknown: ", "")
		w.out.WriteString(regexp.MustCompile(`tmp\d+`).ReplaceAllString(text, "tmpN") + "\n")
	}
}

// option returns the number in the option "name=number"; 0 without it.
func option(options []string, name string) (n int64) {
	for _, o := range options {
		if value, ok := strings.CutPrefix(o, name+"="); ok {
			n, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return n
}

func replicas(ids []string) (list []policies.Replica) {
	for _, id := range ids {
		id, draining := strings.CutSuffix(id, "*")
		id, prefill := strings.CutSuffix(id, "+")
		r := testReplica(id)
		r.Draining, r.Prefill = draining, prefill
		list = append(list, r)
	}
	return list
}

// report sends reports over a stream and prints the last reply.
func (w *world) report(p *plane, id string, options []string) {
	name := id
	m := &api.LoadReport{Replica: id, Model: "m", Sequence: 1, EngineReady: !slices.Contains(options, "not-ready"), Residents: 4, Load: &api.Load{HeldTokens: option(options, "held")}}
	for _, o := range options {
		switch key, value, _ := strings.Cut(o, "="); key {
		case "over":
			name = value
		case "model":
			m.Model = value
		case "migrations":
			m.Migrations = []*api.Migration{reporttest.Migration(1, loadreport.MigrationDone), reporttest.Migration(2, "pull")}
		}
	}
	s := w.streams[name]
	if s == nil {
		var err error
		if s, err = p.api.Report(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		w.streams[name] = s
	}
	for range max(option(options, "times"), 1) {
		_ = s.Send(m) // an error of the stream comes from Recv
		reply, err := s.Recv()
		if err != nil {
			delete(w.streams, name)
			w.printError(err)
			return
		}
		if w.out.Reset(); reply.GetSequence() != 1 {
			w.t.Errorf("reply %v to report 1", reply)
		}
		fmt.Fprintf(&w.out, "epoch %d, mean %.0f", reply.GetEpoch(), reply.GetStageMeanHeld())
		w.out.WriteString(map[bool]string{true: ", drain\n", false: "\n"}[reply.GetDrain()])
	}
}

// wait lets time pass. The replicas of the command load report twice a second.
func (w *world) wait(length time.Duration) {
	const interval = 500 * time.Millisecond
	for end := time.Now().Add(length); time.Now().Before(end); {
		next := time.Now().Truncate(interval).Add(interval)
		time.Sleep(min(time.Until(next), time.Until(end)))
		synctest.Wait()
		if time.Now().Before(next) {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(w.loads)) {
			r := w.loads[id]
			r.Flow.Seen += 100
			w.loads[id] = r
			for _, p := range w.planes {
				if _, err := p.HandleReport(w.t.Context(), r); err != nil {
					w.t.Error(err)
				}
			}
		}
		synctest.Wait()
	}
}

// write stores a plan as another server would.
func (w *world) write(words []string) {
	epoch, _ := strconv.Atoi(words[0])
	plan := plantest.Parse(strings.Join(words[1:], " "))
	plan.Epoch = policies.Epoch(epoch)
	ctx, cancel := context.WithCancel(w.t.Context())
	watch := w.store.Store.Watch(ctx)
	u := <-watch
	cancel()
	for range watch {
	}
	_, err := w.store.Store.CompareAndSwap(w.t.Context(), u.Version, store.Object{Epoch: plan.Epoch, Plans: []policies.Plan{plan}})
	w.printError(err)
}

package processes

import (
	"cmp"
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/store"
)

// plane is one of the control planes of a fleet.
type plane struct {
	f                   *fleet
	name, listen, admin string
	file                string // the fleet file, in the fleet's directory; "": fleet.yaml
	process             *harness.Daemon
}

// start restarts the control plane after its process has ended.
func (p *plane) start() {
	p.f.T.Helper()
	p.launch()
	p.process.WaitForLog("control plane of")
}

// launch is start without waiting for the control plane, which may fail.
func (p *plane) launch() {
	p.f.T.Helper()
	file := cmp.Or(p.file, "fleet.yaml")
	args := []string{"control", "-c", p.f.path(file), "--name", p.name, "--listen", p.listen, "--admin", p.admin, "--log", "info"}
	p.process = harness.Command{Binary: cascade, Args: args, MayFail: true}.Start(p.f.T)
}

// status fetches the state of the control plane once.
func (p *plane) status() (control.Status, error) { return p.f.Status("http://" + p.admin) }

// await waits until the state of the control plane meets a condition, and returns it.
func (p *plane) await(what string, holds func(control.Status) bool) (s control.Status) {
	p.f.T.Helper()
	p.f.WaitFor(p.name+": "+what, func() bool {
		var err error
		s, err = p.status()
		return err == nil && holds(s)
	})
	return s
}

// order gives an order at the control plane, and again if it says to try again, as a busy host's store makes it.
func (p *plane) order(args ...string) {
	p.f.T.Helper()
	p.f.WaitFor("cascade "+strings.Join(args, " "), func() bool {
		_, code := commandCode(append(args, "--control", "http://"+p.admin)...)
		return code == 0
	})
}

// cascade runs an operator's command at the control plane.
func (p *plane) cascade(args ...string) string {
	p.f.T.Helper()
	return command(p.f.T, append(args, "--control", "http://"+p.admin)...)
}

// freeze suspends the control plane with SIGSTOP at a moment when it does not hold the lock of the
// plan object: otherwise no process could write the object.
func (p *plane) freeze() {
	p.f.T.Helper()
	lock, err := os.Open(p.f.path("state/plan.json.lock"))
	if err == nil {
		defer lock.Close()
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	testkit.NoError(p.f.T, err)
	p.process.Signal(syscall.SIGSTOP)
	time.Sleep(tick) // until the signal takes effect
}

// isFollowing returns a condition: the control plane serves the plans of the given leader, and receives
// reports from every replica itself.
func isFollowing(holder string) func(control.Status) bool {
	return func(s control.Status) bool {
		return s.Planner.Holder == holder && !s.Planner.Leads && hasFreshReports(s)
	}
}

// isLeading reports whether a control plane leads and receives reports from every replica.
func isLeading(s control.Status) bool { return s.Planner.Leads && hasFreshReports(s) }

// fresh is the maximum age of a report, in seconds: reports arrive about every second, but this
// host may be busy.
const fresh = 10

// hasFreshReports reports whether a control plane has fresh reports from every replica.
func hasFreshReports(s control.Status) bool {
	all := harness.Replicas(s)
	return len(all) > 0 && !slices.ContainsFunc(all, func(r control.Replica) bool {
		return !r.Connected || r.ReportAge == nil || *r.ReportAge > fresh
	})
}

// envoyHasPlan returns a condition: an Envoy is connected to this control plane, and has its latest plan.
func envoyHasPlan(node string) func(control.Status) bool {
	return func(s control.Status) bool {
		for _, n := range s.Nodes {
			if n.ID == node {
				return n.Connected && n.Plane == "" && n.Current && n.Epoch == s.Epoch
			}
		}
		return false
	}
}

// record is the history of the plan object, as far as a watcher has seen it.
type record struct {
	f    *fleet
	stop func()

	mu      sync.Mutex
	holders []string // holders of the planning lease, in order; "" for none
	writes  int      // number of observed writes
	last    store.Object
	plans   map[string]policies.Plan // by model and epoch
}

// watchPlans watches the plan object until the test ends, and checks that no epoch decreases, that no epoch has two plans,
// and that versions ascend.
func (f *fleet) watchPlans() *record {
	f.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &record{f: f, plans: map[string]policies.Plan{}}
	updates := store.New(testkit.Must(store.NewFile(f.path("state")))).Watch(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		revision, failed := uint64(0), false
		for u := range updates {
			if u.Err != nil {
				if !errors.Is(u.Err, store.ErrUnavailable) {
					f.T.Errorf("the plan object: %v", u.Err)
				}
				failed = true // the same version comes again
				continue
			}
			n, err := strconv.ParseUint(string(u.Version), 10, 64)
			if err == nil && (n < revision || n == revision && !failed) {
				f.T.Errorf("revision %s of the plan object after %d", u.Version, revision)
			}
			revision, failed = n, false
			r.see(u.Object)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	f.T.Cleanup(r.stop)
	return r
}

func (r *record) see(o store.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.Epoch < r.last.Epoch {
		r.f.T.Errorf("epoch %d after %d", o.Epoch, r.last.Epoch)
	}
	for _, p := range o.Plans {
		key := p.Model + " " + strconv.FormatUint(uint64(p.Epoch), 10)
		if other, ok := r.plans[key]; ok && !reflect.DeepEqual(p, other) {
			r.f.T.Errorf("epoch %s means two plans: %+v and %+v", key, other, p)
		}
		r.plans[key] = p
	}
	if n := len(r.holders); n == 0 || r.holders[n-1] != o.Lease.Holder {
		r.holders = append(r.holders, o.Lease.Holder)
	}
	r.last = o
	r.writes++
}

// held returns the holders of the lease since the last call, in order.
func (r *record) held() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.holders
	r.holders = nil
	if n := len(out); n > 0 {
		r.holders = out[n-1:]
	}
	return append([]string(nil), out...)
}

// await waits until a control plane holds the lease.
func (r *record) await(holder string) {
	r.f.T.Helper()
	r.f.WaitFor(holder+" has the planning lease", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.last.Lease.Holder == holder && r.last.Lease.Expires.After(time.Now())
	})
}

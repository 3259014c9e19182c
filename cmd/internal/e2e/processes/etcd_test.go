package processes

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

// storeFault reports whether a status has a fault of the store.
func storeFault(s control.Status, object string) bool {
	for _, f := range s.Faults {
		if f.Kind == control.FaultStore && (object == "" || f.Object == object) {
			return true
		}
	}
	return false
}

// TestEtcdGone keeps the plan in etcd, which is killed for a minute, then suspended, then full,
// under load: no request fails, running streams go on, the control planes say what is wrong, one
// that restarts meanwhile waits, and planning resumes with one leader.
func TestEtcdGone(t *testing.T) {
	skipSlow(t)
	cluster := etcdtest.Start(t, etcdtest.Config{Args: []string{"--quota-backend-bytes=33554432"}})
	member := cluster.Members[0]
	f := newFleet(t, setup{replicas: 2, planes: 2, edit: func(c *config.Fleet) { c.State = "etcd://" + member.Endpoint + "/cascade/test" }})
	a, b := f.planes[0], f.planes[1]
	a.await("leads", isLeading)
	b.await("follows a", isFollowing("a"))
	client, err := etcd.New(etcd.Config{Endpoints: cluster.Endpoints(), Prefix: "/cascade/test"})
	testkit.NoError(t, err)
	defer client.Close()
	plans := f.watchStore(store.New(client))
	f.endureOutages("etcd", []outage{
		{name: "killed", lasts: time.Minute, inject: member.Kill, heal: member.Restart, object: "read", fault: "stored plan cannot be read", restart: true},
		{name: "suspended", lasts: 30 * time.Second, inject: member.Suspend, heal: member.Resume, object: "read", fault: "stored plan cannot be read"},
		{name: "full", lasts: 20 * time.Second, inject: cluster.Fill, heal: cluster.Empty, object: "write", fault: "its database is full: compact and defragment it"},
	})
	plans.stop()
	t.Logf("the plan object was written %d times, epoch %d; leaders %q", plans.writes, plans.last.Epoch, plans.held())
	f.awaitEmpty(f.replicas...)
}

// whyNonePlans says what is missing until one of two control planes plans, the other follows, and neither has a fault of
// its store; "" if nothing is.
func whyNonePlans(a, b control.Status) string {
	leader, follower, name := a, b, "a"
	if b.Planner.Leads {
		leader, follower, name = b, a, "b"
	}
	switch {
	case !leader.Planner.Leads:
		return "none leads"
	case follower.Planner.Leads:
		return "both lead" // two statuses are not of one moment
	case follower.Planner.Holder != name:
		return "the follower does not know the leader"
	case !hasFreshReports(a) || !hasFreshReports(b):
		return "load reports are late"
	}
	for _, s := range []control.Status{a, b} {
		for _, f := range s.Faults {
			if f.Kind == control.FaultStore {
				return "fault of " + f.Object
			}
		}
	}
	return ""
}

// lateness is how long something waited for each reason.
type lateness struct {
	reasons map[string]time.Duration
	last    time.Time
}

// count adds the time since the last call to a reason; "" is none.
func (l *lateness) count(why string) {
	now := time.Now()
	if l.reasons == nil {
		l.reasons = make(map[string]time.Duration)
	}
	if why != "" && !l.last.IsZero() {
		l.reasons[why] += now.Sub(l.last).Round(time.Millisecond)
	}
	l.last = now
}

// outage is a fault of the store of a fleet.
type outage struct {
	name          string
	lasts         time.Duration
	inject, heal  func()
	object, fault string // what a status says, and what the command says
	restart       bool   // a control plane restarts meanwhile
}

// endureOutages injects faults into the store of a fleet of two control planes, under load.
func (f *fleet) endureOutages(engine string, outages []outage) {
	t, a, b := f.T, f.planes[0], f.planes[1]
	t.Helper()
	load := f.newLoad(6, 250, 300, 1000, 4000)
	load.WaitForRequests(10)
	if text := command(t, "status", "-c", f.path("fleet.yaml")); !strings.Contains(text, "plans") {
		t.Errorf("status by the fleet file: %s", text)
	}
	for _, outage := range outages {
		began := time.Now()
		var long sync.WaitGroup
		for i := range 4 {
			output := int(outage.lasts / (10 * time.Millisecond)) // lasts half as long as the outage
			long.Go(func() { load.Send(harness.Prompt(100+i, 400, output), true) })
		}
		outage.inject()
		at := time.Now()
		leader := a
		if s, err := b.status(); err == nil && s.Planner.Leads {
			leader = b
		}
		leader.await("says that "+engine+" is "+outage.name, func(s control.Status) bool { return storeFault(s, outage.object) })
		t.Logf("%s %s: a status says so after %v", engine, outage.name, time.Since(at))
		text, code := commandCode("status", "--control", "http://"+leader.admin)
		if !strings.Contains(text, outage.fault) || code != 1 {
			t.Errorf("%s %s: status exits with %d and says: %s", engine, outage.name, code, text)
		}
		if text, code := commandCode("drain", "r1", "--control", "http://"+leader.admin); code == 0 {
			t.Errorf("%s %s: a drain is accepted: %s", engine, outage.name, text)
		}
		if outage.restart {
			b.process.Kill()
			b.start()
			b.await("waits for "+engine, func(s control.Status) bool { return storeFault(s, "read") })
		}
		load.WaitForRequests(10)
		time.Sleep(max(0, outage.lasts-time.Since(began)))
		load.WaitForRequests(10)
		outage.heal()
		at = time.Now()
		var late lateness
		f.WaitFor("one plans", func() bool {
			x, _ := a.status()
			y, _ := b.status()
			why := whyNonePlans(x, y)
			late.count(why)
			return why == ""
		})
		t.Logf("%s %s for %v: one plans again after %v; until then %v", engine, outage.name, outage.lasts, time.Since(at), late.reasons)
		for _, p := range f.planes {
			p.cascade("drain", "--undo", "r1") // which may have been stored after all
			p.cascade("drain", "r0", "--wait", "--timeout", patience.String())
			p.cascade("drain", "--undo", "r0")
		}
		long.Wait()
	}
	load.Stop()
	load.Report()
}

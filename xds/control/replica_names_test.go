package control

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// fakeResolver answers from a table; a name that is missing is not found, and "hangs" does not answer.
type fakeResolver struct {
	mu    sync.Mutex
	table map[string]string
}

func (f *fakeResolver) set(host, addresses string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.table[host] = addresses
}

func (f *fakeResolver) LookupNetIP(ctx context.Context, _, host string) (all []netip.Addr, err error) {
	f.mu.Lock()
	text := f.table[host]
	f.mu.Unlock()
	if text == "hangs" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, a := range strings.Fields(text) {
		all = append(all, netip.MustParseAddr(a))
	}
	if len(all) == 0 {
		err = errors.New("no such host")
	}
	return all, err
}

// TestReplicaNames follows the addresses of two names.
func TestReplicaNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &fakeResolver{table: map[string]string{"one.example": "10.0.0.9 10.0.0.2", "two.example": "::ffff:10.0.0.3"}}
		n := newReplicaNames(Config{Resolver: dns, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		var applied string
		count := 0
		var refusal atomic.Pointer[string] // why apply refuses the list; nil: it does not
		refuse := func(why string) { refusal.Store(&why) }
		n.apply = func(list []policies.Replica) error {
			if why := refusal.Load(); why != nil {
				return errors.New(*why)
			}
			count++
			applied = ""
			for _, r := range list {
				applied += r.Address + " "
			}
			return nil
		}
		list := func(addresses ...string) (out []policies.Replica) {
			for i, a := range addresses {
				out = append(out, policies.Replica{ID: policies.ReplicaID("r" + string(rune('0'+i))), Address: a})
			}
			return out
		}
		first := list("one.example:8000", "two.example:8001", "127.0.0.1:8002")
		started, err := n.start(first)
		testkit.NoError(t, err)
		if started[0].Address != "10.0.0.2:8000" || started[1].Address != "10.0.0.3:8001" || started[2].Address != "127.0.0.1:8002" || first[0].Address != "one.example:8000" {
			t.Fatalf("at the start %+v of %+v", started, first)
		}
		testkit.NoError(t, n.set(first))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go n.run(ctx)
		// expect waits for a look-up, and checks the addresses and the faults.
		expect := func(what, want string, faults ...string) {
			t.Helper()
			time.Sleep(lookupPeriod + lookupTimeout)
			synctest.Wait()
			if applied != want {
				t.Errorf("%s: addresses %q, want %q", what, applied, want)
			}
			got := n.faults()
			for i, f := range got {
				if i < len(faults) && !strings.Contains(f.Object+": "+f.Text, faults[i]) {
					t.Errorf("%s: fault %+v, want %s", what, f, faults[i])
				}
			}
			if len(got) != len(faults) {
				t.Errorf("%s: faults %+v, want %d", what, got, len(faults))
			}
		}
		const all = "10.0.0.2:8000 10.0.0.3:8001 127.0.0.1:8002 "
		dns.set("one.example", "10.0.0.1 10.0.0.2")
		before := count
		expect("a lower address is added", all)
		if count != before {
			t.Error("unchanged addresses are applied again")
		}
		dns.set("one.example", "hangs")
		dns.set("two.example", "")
		expect("nothing is found", all, "r0: the name in its address one.example:8000 is not found: context deadline exceeded; proxies keep 10.0.0.2",
			"r1: the name in its address two.example:8001 is not found: no such host; proxies keep 10.0.0.3")
		dns.set("one.example", "fd00::1")
		dns.set("two.example", "10.0.0.4")
		refuse("in use")
		expect("new addresses are refused", all, "refused: names of replicas have new addresses, which are refused: in use")
		refusal.Store(nil)
		moved := "[fd00::1]:8000 10.0.0.4:8001 127.0.0.1:8002 "
		expect("new addresses", moved)

		dns.set("one.example", "10.0.0.5")
		if refuse("bad list"); n.set(list("one.example:9")) == nil {
			t.Error("a bad list is accepted")
		}
		refusal.Store(nil)
		moved = "10.0.0.5:8000 10.0.0.4:8001 127.0.0.1:8002 "
		expect("an address that was found for a bad list", moved)
		testkit.NoError(t, n.set(list("one.example:8000", "new.example:1")))
		expect("an unknown name", moved, "r1: the name in its address new.example:1 is not found: no such host; the replicas of the fleet file take effect")
		dns.set("new.example", "10.0.0.7")
		expect("the name is found", "10.0.0.5:8000 10.0.0.7:1 ")
	})
}

// TestReplicasByName serves a replica by its name, and refuses to start if no look-up finds it.
func TestReplicasByName(t *testing.T) {
	f := newFakeFleet(t, 1)
	at := f.list[0].Address
	f.list[0].Address = strings.Replace(at, "127.0.0.1", "engine.example", 1)
	dns := &fakeResolver{table: map[string]string{}}
	if _, err := New(Config{Rules: fastRules(), Replicas: f.list, Resolver: dns, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), `replica "r0": the name in its address engine.example`) {
		t.Errorf("without an address: %v", err)
	}
	dns.set("engine.example", "127.0.0.1")
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Resolver: dns})
	f.startReports(t, c)
	waitFor(t, c, "the replica at its address", func(s Status) bool {
		return s.Epoch > 0 && c.replicaStatus("r0").Address == at && len(s.Faults) == 0
	})
	dns.set("engine.example", "")
	testkit.NoError(t, c.SetReplicas(f.list))
	waitFor(t, c, "the name not found", func(s Status) bool { return hasFault(s, FaultReplica, "r0") && c.replicaStatus("r0").Address == at })
}

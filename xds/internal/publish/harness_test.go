package publish_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// view returns a fleet of one model. Each of the stages is a list of replicas,
// and the cuts are the boundaries between them.
func view(epoch policies.Epoch, cuts []policies.Tokens, stages ...string) resources.View {
	p := policies.Plan{Model: "m", Epoch: epoch}
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	low := policies.Tokens(0)
	for k, word := range stages {
		st := policies.Stage{Low: low, High: policies.Unbounded}
		if k < len(cuts) {
			st.High = cuts[k]
		}
		low = st.High
		for _, id := range strings.Fields(word) {
			st.Replicas = append(st.Replicas, policies.ReplicaID(id))
			v.Endpoints = append(v.Endpoints, endpoint("m", id))
		}
		p.Stages = append(p.Stages, st)
	}
	v.Plans = []policies.Plan{p}
	return v
}

// endpoint returns a replica whose address is derived from its id.
func endpoint(model, id string) resources.Endpoint {
	var sum int
	for _, c := range id {
		sum = sum*31 + int(c)
	}
	return resources.Endpoint{
		ID: policies.ReplicaID(id), Model: model, Host: fmt.Sprintf("n%d", sum%3),
		Address: fmt.Sprintf("10.%d.%d.%d:8000", sum>>16&255, sum>>8&255, sum&255),
	}
}

// recordingCache is a Cache that records the sets.
type recordingCache struct {
	*cache.Cache
	mu      sync.Mutex
	groups  []string // of the sets
	sets    []resources.Set
	checked int // sets that takeChanges has returned
}

func (c *recordingCache) Set(group string, s resources.Set) {
	c.mu.Lock()
	c.groups, c.sets = append(c.groups, group), append(c.sets, s)
	c.mu.Unlock()
	c.Cache.Set(group, s)
}

// takeChanges returns, for each set since the last call, how many resources of
// each type changed in its group, such as "canary: cds 8, eds 8".
func (c *recordingCache) takeChanges() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for i := c.checked; i < len(c.sets); i++ {
		var before resources.Set
		for k := range i {
			if g := c.groups[k]; g == c.groups[i] || g == "" && !slices.Contains(c.groups[:i], c.groups[i]) {
				before = c.sets[k]
			}
		}
		var words []string
		for _, kind := range []struct{ short, typ string }{
			{"cds", resources.ClusterType}, {"eds", resources.EndpointType}, {"lds", resources.ListenerType}, {"rds", resources.RouteType},
		} {
			names := resources.ChangedNames(before, c.sets[i], kind.typ)
			names = slices.DeleteFunc(names, func(n string) bool {
				r := cmp.Or(c.sets[i].Get(kind.typ, n), before.Get(kind.typ, n))
				return r.Unlisted // these proxies do not subscribe to it
			})
			if len(names) > 0 {
				words = append(words, fmt.Sprintf("%s %d", kind.short, len(names)))
			}
		}
		text := cmp.Or(strings.Join(words, ", "), "nothing")
		if group := c.groups[i]; group != "" {
			text = group + ": " + text
		}
		out = append(out, text)
	}
	c.checked = len(c.sets)
	return out
}

// harness is a control plane with its proxies, inside a synctest bubble.
type harness struct {
	t         *testing.T
	cache     *recordingCache
	ledger    *publish.Ledger
	publisher *publish.Publisher
	server    serverv3.Server
	history   *history
	ctx       context.Context
	stop      func()
	wg        sync.WaitGroup
}

// startHarness completes the configuration with a cache and a ledger.
func startHarness(t *testing.T, cfg publish.Config) *harness {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &harness{t: t, ledger: publish.NewLedger(nil), ctx: ctx,
		history: &history{plans: make(map[string]policies.Plan), at: make(map[policies.ReplicaID]string)}}
	w.cache = &recordingCache{Cache: cache.New(cache.Config{Group: func(n *corev3.Node) string { return cfg.Groups.GroupOf(n.GetId(), n.GetCluster()) }})}
	cfg.Cache, cfg.Ledger = w.cache, w.ledger
	var err error
	if w.publisher, err = publish.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.server = serverv3.NewServer(ctx, w.cache, w.ledger)
	w.wg.Go(func() {
		if err := w.publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	w.stop = func() { cancel(); w.wg.Wait() }
	t.Cleanup(w.stop)
	return w
}

func (w *harness) startProxy(p *fakeProxy) *fakeProxy {
	p.t, p.history = w.t, w.history
	if p.rand == nil {
		p.rand = rand.New(rand.NewPCG(1, 2))
	}
	w.wg.Go(func() { p.run(w.ctx, w.server) })
	return p
}

func (w *harness) submit(v resources.View) {
	w.history.add(v)
	w.publisher.Submit(v)
}

// waitForIdle waits until the rollout is over and the last set has arrived, and
// returns how long the rollout took.
func (w *harness) waitForIdle() time.Duration {
	start := time.Now()
	for synctest.Wait(); w.publisher.Status().Phase != "idle"; synctest.Wait() {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(start)
	time.Sleep(time.Second)
	synctest.Wait()
	return took
}

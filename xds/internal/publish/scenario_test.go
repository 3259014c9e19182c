package publish_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestScenarios runs testdata/scenarios/*.txt (package datadriven; -rewrite rewrites
// the expected output) on a control plane with fake proxies, in simulated time:
//
//	control [canary] [ack=2s] [count=our-*]
//	                           starts the control plane, or another one in its place,
//	                           to which the proxies reconnect. Without count all
//	                           proxies count. With canary there are
//	                           two groups, the trial of a plan takes 2 s, and removed
//	                           endpoints drain
//	proxy NAME [slow] [cluster=C]  starts a proxy; a slow one never answers
//	plan EPOCH a b | c [cuts=(10,20)] [unhealthy=a] [weight=a:40] [model=z:q]
//	     [same-address] [now]  submits a view and, without now, waits for the end of
//	                           its rollout. Prints how many resources of each type
//	                           each applied set changed, and the seconds it took
//	wait                       waits for the end of the rollout
//	for 1s                     time passes
//	refuse NAME | accept NAME  the proxy refuses new route tables from now on, or not
//	regression [TEXT]          what the monitor says of canaries on trial
//	requests N                 requests in progress at the replicas of the first stage
//	counted b                  prints the clusters for which b's requests were counted
//	received NAME              prints how many resources came since the last time
//	status                     prints the rollout, the refused plans and the nodes
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			p := &player{t: t, proxies: make(map[string]*fakeProxy), received: make(map[string]int)}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				p.out.Reset()
				p.do(d)
				return p.out.String()
			})
			p.harness.stop()
		})
	})
}

// player runs the commands of a scenario.
type player struct {
	t *testing.T
	*harness
	monitor  *fakeMonitor
	proxies  map[string]*fakeProxy
	received map[string]int
	out      strings.Builder
}

func (p *player) do(d *datadriven.TestData) {
	var words []string // without the options
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			words = append(words, arg.Key)
		}
	}
	switch d.Cmd {
	case "control":
		p.startControl(d)
	case "proxy":
		f := &fakeProxy{id: words[0], cluster: option(d, "cluster"), maxDelay: time.Millisecond}
		if slices.Contains(words, "slow") {
			f.maxDelay = 1000 * time.Hour
		}
		p.proxies[f.id] = p.startProxy(f)
		time.Sleep(time.Second)
	case "plan":
		p.plan(d, words)
	case "wait":
		p.wait()
	case "for":
		length, err := time.ParseDuration(words[0])
		if err != nil {
			d.Fatalf(p.t, "%v", err)
		}
		time.Sleep(length)
	case "refuse":
		f := p.proxies[words[0]]
		good := f.version(resources.RouteType, resources.RouteName)
		f.refuse(func(r *discoveryv3.Resource) bool { return r.Name == resources.RouteName && r.Version != good })
	case "accept":
		p.proxies[words[0]].refuse(nil)
	case "regression":
		p.monitor.set(strings.Join(words, " "), 0)
	case "requests":
		n, _ := strconv.Atoi(words[0])
		p.monitor.set("", n)
	case "counted":
		p.monitor.mu.Lock()
		defer p.monitor.mu.Unlock()
		for _, cluster := range slices.Sorted(maps.Keys(p.monitor.clusters)) {
			if p.monitor.clusters[cluster] == endpoint("m", words[0]).Address {
				fmt.Fprintln(&p.out, cluster)
			}
		}
	case "received":
		n := p.proxies[words[0]].received()
		fmt.Fprintln(&p.out, n-p.received[words[0]])
		p.received[words[0]] = n
	case "status":
		p.status()
	default:
		d.Fatalf(p.t, "unknown command %q", d.Cmd)
	}
}

// option returns the value of an option of a command, "" if it is not given.
func option(d *datadriven.TestData, key string) string {
	for _, arg := range d.CmdArgs {
		if arg.Key == key && len(arg.Vals) > 0 {
			return arg.Vals[0]
		}
	}
	return ""
}

// startControl starts the control plane, and connects the proxies of the one before.
func (p *player) startControl(d *datadriven.TestData) {
	var cfg publish.Config
	if d.HasArg("canary") {
		groups, err := resources.NewGroups([]resources.GroupRule{{Name: "canary", Nodes: []string{"canary*"}}})
		if err != nil {
			d.Fatalf(p.t, "%v", err)
		}
		p.monitor = &fakeMonitor{clusters: make(map[string]string)}
		cfg = publish.Config{Groups: groups, Watch: 2 * time.Second, Monitor: p.monitor, RequestCounter: p.monitor}
		cfg.OnRefusal = func(r publish.Refusal) {
			p.monitor.mu.Lock()
			defer p.monitor.mu.Unlock()
			p.monitor.reported = append(p.monitor.reported, r)
		}
	}
	if ours := option(d, "count"); ours != "" {
		cfg.Counts = func(node string) bool { return resources.MatchGroup([]string{ours}, node) }
	}
	cfg.AckTimeout, _ = time.ParseDuration(option(d, "ack"))
	if p.harness != nil {
		p.stop()
	}
	p.harness = startHarness(p.t, cfg)
	for _, f := range p.proxies {
		p.startProxy(f)
	}
	time.Sleep(time.Second) // they subscribe before there is a set
}

// plan submits a view.
func (p *player) plan(d *datadriven.TestData, words []string) {
	epoch, err := strconv.Atoi(words[0])
	if err != nil {
		d.Fatalf(p.t, "%v", err)
	}
	var cuts []policies.Tokens
	for _, arg := range d.CmdArgs {
		for _, v := range arg.Vals {
			if n, err := strconv.Atoi(v); err == nil {
				cuts = append(cuts, policies.Tokens(n))
			}
		}
	}
	now, same := slices.Contains(words, "now"), slices.Contains(words, "same-address")
	words = slices.DeleteFunc(words[1:], func(w string) bool { return w == "now" || w == "same-address" })
	v := view(policies.Epoch(epoch), cuts, strings.Split(strings.Join(words, " "), "|")...)
	if same {
		v.Endpoints[1].Address = v.Endpoints[0].Address
	}
	heavy, weight, _ := strings.Cut(option(d, "weight"), ":")
	for i := range v.Endpoints {
		switch string(v.Endpoints[i].ID) {
		case option(d, "unhealthy"):
			v.Endpoints[i].Health = resources.Unhealthy
		case heavy:
			n, _ := strconv.Atoi(weight)
			v.Endpoints[i].Weight = uint32(n)
		}
	}
	if model, id, _ := strings.Cut(option(d, "model"), ":"); model != "" {
		v.Models = append(v.Models, resources.Model{Name: model, Context: 100})
		v.Plans = append(v.Plans, policies.Plan{Model: model, Epoch: 2, Stages: policies.OneStagePlan(model, []policies.ReplicaID{policies.ReplicaID(id)}).Stages})
		v.Endpoints = append(v.Endpoints, endpoint(model, id))
	}
	p.submit(v)
	if !now {
		p.wait()
	}
}

// wait waits for the end of the rollout.
func (p *player) wait() {
	took := p.waitForIdle()
	for _, change := range p.cache.takeChanges() {
		fmt.Fprintln(&p.out, change)
	}
	if took >= time.Second {
		fmt.Fprintf(&p.out, "after %v\n", took.Round(time.Second))
	}
}

func (p *player) status() {
	synctest.Wait()
	st := p.publisher.Status()
	fmt.Fprintf(&p.out, "plan %d, %s", st.Epoch, st.Phase)
	for _, g := range st.Groups {
		fmt.Fprintf(&p.out, ", group %q: %d nodes at %d", g.Name, g.Nodes, g.Epoch)
	}
	if st.Err != nil {
		fmt.Fprintf(&p.out, ": %v", st.Err)
	}
	fmt.Fprintln(&p.out)
	if p.monitor != nil {
		for _, r := range p.monitor.reported {
			fmt.Fprintf(&p.out, "reported: %s of group %q refused plan %d: %v\n", r.Node, r.Group, r.Epoch, r.Plans)
		}
	}
	for _, r := range st.Refused {
		fmt.Fprintf(&p.out, "plan %d: %s refused by %s\n", r.Epoch, r.Name, r.Node)
	}
	for _, n := range st.Nodes {
		fmt.Fprintf(&p.out, "%s: plan %d", n.ID, n.Epoch)
		if n.Observer {
			p.out.WriteString(", observer")
		}
		if n.Current {
			p.out.WriteString(", current")
		}
		if n.Unlisted {
			p.out.WriteString(", unlisted")
		}
		if n.Refusing {
			p.out.WriteString(", refusing")
		}
		if n.Fenced {
			p.out.WriteString(", fenced")
		}
		if n.NACKs > 0 {
			fmt.Fprintf(&p.out, ", %d NACKs, last %q", n.NACKs, n.LastError)
		}
		if n.Reason != "" {
			fmt.Fprintf(&p.out, "; %s", n.Reason)
		}
		fmt.Fprintln(&p.out)
	}
	for _, f := range p.proxies {
		f.mu.Lock()
		if f.maxDelay < time.Hour && f.checked == 0 {
			p.t.Errorf("%s checked no routes", f.id)
		}
		f.mu.Unlock()
	}
}

// fakeMonitor is a Monitor and a RequestCounter with results set by the test. It
// keeps the reported refusals.
type fakeMonitor struct {
	mu       sync.Mutex
	reported []publish.Refusal
	bad      string
	requests int
	clusters map[string]string // addresses by the clusters that were asked for
}

func (v *fakeMonitor) Regression(group string, since time.Time) (bool, string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bad != "" && group == "canary" && !since.IsZero(), v.bad
}

func (v *fakeMonitor) ActiveRequests(cluster string, addresses []string) (int, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clusters[cluster] = strings.Join(addresses, " ")
	if cluster != resources.ClusterName("m", 0) {
		return 0, true
	}
	return v.requests, true
}

func (v *fakeMonitor) set(bad string, requests int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bad, v.requests = bad, requests
}

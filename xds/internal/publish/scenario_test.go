package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestScenarios runs testdata/scenarios/*.txt (package datadriven; -rewrite rewrites
// the expected output) on a simulation, with real resources and without randomness:
//
//	control [canary] [ack=2s] [count=our-*]
//	                           starts the control plane, or another one in its place,
//	                           to which the proxies reconnect. Without count all
//	                           proxies count. With canary there are
//	                           two groups, the trial of a plan takes 2 s, and removed
//	                           endpoints drain
//	proxy NAME [slow] [cluster=C]  starts a proxy; a slow one never answers
//	stop NAME                  stops a proxy
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
			p := &player{t: t, received: make(map[string]int)}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				p.out.Reset()
				p.do(d)
				return p.out.String()
			})
		})
	})
}

// player runs the commands of a scenario.
type player struct {
	t *testing.T
	*simulation
	monitor  *fakeMonitor
	received map[string]int
	printed  int // sets of applied
	out      strings.Builder
}

// node returns a node by its id.
func (p *player) node(id string) *simNode {
	return p.nodes[slices.IndexFunc(p.nodes, func(n *simNode) bool { return n.id == id })]
}

// pass lets time pass, while all messages arrive at once, until it is over or done.
func (p *player) pass(limit time.Duration, done func() bool) {
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		for p.deliverOne() {
			p.observe()
		}
		p.observe()
		if done() || !time.Now().Before(end) {
			return
		}
	}
}

func never() bool { return false }

func (p *player) do(d *datadriven.TestData) {
	var words []string // without the options
	options := make(map[string]string)
	for _, word := range testkit.Words(d)[1:] {
		if name, value, found := strings.Cut(word, "="); found {
			options[name] = value
		} else {
			words = append(words, word)
		}
	}
	switch d.Cmd {
	case "control":
		p.startControl(words, options)
	case "proxy":
		n := p.addNode(words[0], options["cluster"])
		n.mute = slices.Contains(words, "slow")
		n.connect()
		p.pass(time.Second, never)
	case "stop":
		p.node(words[0]).disconnect()
	case "plan":
		p.plan(words, options)
	case "wait":
		p.wait()
	case "for":
		p.pass(testkit.Must(time.ParseDuration(words[0])), never)
	case "refuse":
		n := p.node(words[0])
		n.accepts = n.has[resources.RouteType][resources.RouteName].Version
	case "accept":
		p.node(words[0]).accepts = ""
	case "regression":
		p.monitor.bad, p.monitor.requests = strings.Join(words, " "), 0
	case "requests":
		p.monitor.bad = ""
		p.monitor.requests, _ = strconv.Atoi(words[0])
	case "counted":
		for _, cluster := range slices.Sorted(maps.Keys(p.monitor.clusters)) {
			if p.monitor.clusters[cluster] == endpoint("m", words[0]).Address {
				fmt.Fprintln(&p.out, cluster)
			}
		}
	case "received":
		n := p.node(words[0]).received
		fmt.Fprintln(&p.out, n-p.received[words[0]])
		p.received[words[0]] = n
	case "status":
		p.status()
	default:
		d.Fatalf(p.t, "unknown command %q", d.Cmd)
	}
}

// startControl starts the control plane, and connects the proxies of the one before.
func (p *player) startControl(words []string, options map[string]string) {
	var cfg Config
	if slices.Contains(words, "canary") {
		groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "canary", Nodes: []string{"canary*"}}}))
		p.monitor = &fakeMonitor{clusters: make(map[string]string)}
		cfg = Config{Groups: groups, Watch: 2 * time.Second, Monitor: p.monitor, RequestCounter: p.monitor}
		cfg.OnRefusal = func(r Refusal) { p.monitor.reported = append(p.monitor.reported, r) }
	}
	if ours := options["count"]; ours != "" {
		cfg.Counts = func(node string) bool { return resources.MatchGroup([]string{ours}, node) }
	}
	cfg.AckTimeout, _ = time.ParseDuration(options["ack"])
	before := p.simulation
	p.simulation, p.printed = startSimulation(p.t, 0, cfg), 0
	if before != nil {
		for _, n := range before.nodes {
			n.disconnect()
			n.sim = p.simulation
			p.nodes = append(p.nodes, n)
			n.connect()
		}
	}
	p.pass(time.Second, never) // they subscribe before there is a set
}

// plan submits a view.
func (p *player) plan(words []string, options map[string]string) {
	epoch := testkit.Must(strconv.Atoi(words[0]))
	var cuts []policies.Tokens
	for cut := range strings.FieldsFuncSeq(options["cuts"], func(r rune) bool { return strings.ContainsRune("(), ", r) }) {
		cuts = append(cuts, policies.Tokens(testkit.Must(strconv.Atoi(cut))))
	}
	now, same := slices.Contains(words, "now"), slices.Contains(words, "same-address")
	words = slices.DeleteFunc(words[1:], func(w string) bool { return w == "now" || w == "same-address" })
	v := View(policies.Epoch(epoch), cuts, strings.Split(strings.Join(words, " "), "|")...)
	if same {
		v.Endpoints[1].Address = v.Endpoints[0].Address
	}
	heavy, weight, _ := strings.Cut(options["weight"], ":")
	for i := range v.Endpoints {
		switch string(v.Endpoints[i].ID) {
		case options["unhealthy"]:
			v.Endpoints[i].Health = resources.Unhealthy
		case heavy:
			n, _ := strconv.Atoi(weight)
			v.Endpoints[i].Weight = uint32(n)
		}
	}
	if model, id, _ := strings.Cut(options["model"], ":"); model != "" {
		v.Models = append(v.Models, resources.Model{Name: model, Context: 100})
		v.Plans = append(v.Plans, policies.Plan{Model: model, Epoch: 2, Stages: policies.OneStagePlan(model, []policies.ReplicaID{policies.ReplicaID(id)}).Stages})
		v.Endpoints = append(v.Endpoints, endpoint(model, id))
	}
	p.pub.Submit(v)
	p.pub.applySubmitted()
	if !now {
		p.wait()
	}
}

// wait waits for the end of the rollout, and prints how many resources of each type each set
// has changed in its group since the last time.
func (p *player) wait() {
	start := time.Now()
	p.pass(time.Hour, func() bool { return p.pub.Status().Phase == "idle" })
	took := time.Since(start)
	p.pass(time.Second, never)
	for ; p.printed < len(p.applied); p.printed++ {
		a := p.applied[p.printed]
		var before resources.Set
		for _, b := range p.applied[:p.printed] {
			if b.group == a.group {
				before = b.set
			}
		}
		var words []string
		for _, kind := range []struct{ short, typ string }{
			{"cds", resources.ClusterType}, {"eds", resources.EndpointType}, {"lds", resources.ListenerType}, {"rds", resources.RouteType},
		} {
			names := resources.ChangedNames(before, a.set, kind.typ)
			names = slices.DeleteFunc(names, func(n string) bool {
				return cmp.Or(a.set.Get(kind.typ, n), before.Get(kind.typ, n)).Unlisted // these proxies do not subscribe to it
			})
			if len(names) > 0 {
				words = append(words, fmt.Sprintf("%s %d", kind.short, len(names)))
			}
		}
		if a.group != "" {
			fmt.Fprintf(&p.out, "%s: ", a.group)
		}
		fmt.Fprintln(&p.out, cmp.Or(strings.Join(words, ", "), "nothing"))
	}
	if took >= time.Second {
		fmt.Fprintf(&p.out, "after %v\n", took.Round(time.Second))
	}
}

func (p *player) status() {
	st := p.pub.Status()
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
}

// fakeMonitor is a Monitor and a RequestCounter with results set by the test. It
// keeps the reported refusals.
type fakeMonitor struct {
	reported []Refusal
	bad      string
	requests int
	clusters map[string]string // addresses by the clusters that were asked for
}

func (v *fakeMonitor) Regression(group string, since time.Time) (bool, string) {
	return v.bad != "" && group == "canary" && !since.IsZero(), v.bad
}

func (v *fakeMonitor) ActiveRequests(cluster string, addresses []string) (int, bool) {
	v.clusters[cluster] = strings.Join(addresses, " ")
	if cluster != resources.ClusterName("m", 0) {
		return 0, true
	}
	return v.requests, true
}

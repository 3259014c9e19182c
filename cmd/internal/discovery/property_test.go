package discovery

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestRandomClusters changes clusters at random, and checks each decision against the rules
// themselves, read off each Pod alone.
func TestRandomClusters(t *testing.T) {
	for seed := range uint64(testkit.Size(60, 3000)) {
		r := rand.New(rand.NewPCG(seed, 7))
		rules := Rules{Base: fleetOf("m", "n"), PeerPort: 9100, EnginePort: 8000}
		c := Cluster{Source: "InferencePool a/b", Port: 9000, ByEndpoints: seed%3 == 0}
		var last Decision
		for step := range 25 {
			mutate(r, &c, step)
			shuffled := c
			shuffled.Pods = slices.Clone(c.Pods)
			r.Shuffle(len(shuffled.Pods), func(i, j int) { shuffled.Pods[i], shuffled.Pods[j] = shuffled.Pods[j], shuffled.Pods[i] })
			d, err := Decide(rules, c, last.Replicas)
			other, otherErr := Decide(rules, shuffled, last.Replicas)
			if fmt.Sprint(d, err) != fmt.Sprint(other, otherErr) {
				t.Fatalf("seed %d step %d: depends on the order of the Pods:\n%v %v\n%v %v", seed, step, d, err, other, otherErr)
			}
			if err != nil {
				if served(last.Replicas, "m") && served(last.Replicas, "n") {
					t.Fatalf("seed %d step %d: no decision although there was one before: %v", seed, step, err)
				}
				continue
			}
			if why := checkDecision(rules, c, last, d); why != "" {
				t.Fatalf("seed %d step %d: %s\ncluster %+v\nbefore %+v\nafter %+v", seed, step, why, c, last, d)
			}
			if why := checkSettles(rules, c, d); why != "" {
				t.Fatalf("seed %d step %d: %s", seed, step, why)
			}
			last = d
		}
	}
}

// checkSettles returns an error unless further decisions for the same cluster end in one that stays:
// what a first one keeps may make room for others.
func checkSettles(rules Rules, c Cluster, d Decision) string {
	for range 3 {
		again, err := Decide(rules, c, d.Replicas)
		if err != nil {
			return "decided again: " + err.Error()
		}
		if fmt.Sprint(again.Replicas) == fmt.Sprint(d.Replicas) {
			return ""
		}
		d = again
	}
	return fmt.Sprintf("decisions go on to change: %+v of %+v", d, c)
}

// mutate changes one or two things.
func mutate(r *rand.Rand, c *Cluster, step int) {
	for range 1 + r.IntN(2) {
		if len(c.Pods) < 2 || r.IntN(3) == 0 && len(c.Pods) < 8 {
			uid := fmt.Sprintf("u%d-%d", step, r.IntN(1000))
			c.Pods = append(c.Pods, Pod{Name: fmt.Sprintf("p%d", r.IntN(6)), UID: uid, Node: "n1", Settings: map[string]string{Prefix + "model": []string{"m", "n"}[r.IntN(2)]},
				IP: fmt.Sprintf("10.0.0.%d", 1+r.IntN(9)), Ready: r.IntN(3) > 0})
			c.Endpoints = append(c.Endpoints, Endpoint{PodUID: uid, Port: 7000 * r.IntN(2), Ready: r.IntN(3) > 0})
			continue
		}
		i := r.IntN(len(c.Pods))
		p := &c.Pods[i]
		switch r.IntN(8) {
		case 0:
			p.Ready = !p.Ready
		case 1:
			p.Terminating = true
		case 2:
			p.Ended = true
		case 3:
			*c = Cluster{Source: c.Source, Port: c.Port, ByEndpoints: c.ByEndpoints, Endpoints: c.Endpoints, Pods: slices.Delete(slices.Clone(c.Pods), i, i+1)}
		case 4:
			p.Settings = map[string]string{Prefix + "model": p.Settings[Prefix+"model"], Prefix + []string{"tp", "role", "drain", "port", "colour", "kv-tokens"}[r.IntN(6)]: []string{"2", "prefill", "true", "x", "9999"}[r.IntN(5)]}
		case 5:
			p.IP = []string{"", "bad", "10.0.0.77", "10.0.0.78"}[r.IntN(4)]
		case 6:
			for j := range c.Endpoints {
				if c.Endpoints[j].PodUID == p.UID {
					c.Endpoints[j].Ready = !c.Endpoints[j].Ready
				}
			}
		case 7:
			p.Settings = map[string]string{Prefix + "model": []string{"m", "n", "o"}[r.IntN(3)]}
		}
	}
}

func served(list []config.Replica, model string) bool {
	return slices.ContainsFunc(list, func(r config.Replica) bool { return r.Model == model && !r.Drain && r.Role == "" })
}

// checkDecision returns which rule a decision breaks.
func checkDecision(rules Rules, c Cluster, before, d Decision) string {
	fleet := rules.Base
	fleet.Replicas = slices.Clone(d.Replicas)
	if errs := fleet.Validate(); len(errs) > 0 {
		return "invalid: " + errs[0].Error()
	}
	in := make(map[string]config.Replica)
	for _, r := range d.Replicas {
		in[r.ID] = r
	}
	for _, s := range d.Pods {
		r, listed := in[s.Replica]
		if listed != (s.State != LeftOut) || listed && r.Drain != (s.State == Draining) {
			return fmt.Sprintf("%s is %v, and listed %v, draining %v", s.Pod, s.State, listed, r.Drain)
		}
		if s.Reason == "" && s.State != Serving {
			return s.Pod + " is not serving for no reason"
		}
	}
	known := make(map[string]config.Replica)
	for _, r := range before.Replicas {
		known[r.ID] = r
	}
	for _, p := range c.Pods {
		id, _ := ReplicaID(p.Name, p.UID)
		ready := p.Ready
		if c.ByEndpoints {
			ready = slices.ContainsFunc(c.Endpoints, func(e Endpoint) bool { return e.PodUID == p.UID && e.Ready })
		}
		r, listed := in[id]
		was, before := known[id]
		switch {
		case p.Ended || p.Terminating || !ready:
			// It must not serve, unless its model has nothing else.
			if listed && !r.Drain && slices.ContainsFunc(d.Pods, func(s Status) bool {
				return s.State == Serving && in[s.Replica].Model == r.Model && in[s.Replica].Role == ""
			}) {
				return p.Name + " serves though it should not, and others could"
			}
			if listed && !before {
				return p.Name + " has become a replica though it takes no requests"
			}
		case before && !was.Drain && !listed:
			if i := slices.IndexFunc(d.Pods, func(s Status) bool { return s.Replica == id }); !strings.Contains(d.Pods[i].Reason, "address") {
				return p.Name + " was serving and ready, and is left out: " + d.Pods[i].Reason
			}
		}
	}
	return ""
}

// FuzzSettings checks that no label or annotation panics or yields what the fleet file refuses
// silently, and that each refusal names the Pod.
func FuzzSettings(f *testing.F) {
	f.Add("port", "7000", "batch", "5", "10.0.0.1", "n1")
	f.Add("tp", "65", "model", "m", "::1", "n")
	f.Add("profile", "../x", "drain", "true", "fe80::1%eth0", "")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, ip, node string) {
		rules := Rules{Base: fleetOf("m"), PeerPort: 9100, EnginePort: 8000}
		pod := Pod{Name: "p", UID: "1", Node: node, IP: ip, Ready: true, Settings: map[string]string{Prefix + k1: v1, Prefix + k2: v2}}
		good := Pod{Name: "good", UID: "2", Node: "n1", IP: "10.9.9.9", Ready: true}
		d, err := Decide(rules, Cluster{Source: "s", Port: 9000, Pods: []Pod{pod, good}}, nil)
		if err != nil {
			t.Fatalf("the good Pod is lost, too: %v", err)
		}
		for _, s := range d.Pods {
			if s.Pod == "good" && s.State != Serving && !strings.Contains(s.Reason, "address") {
				t.Fatalf("the good Pod is %v: %s", s.State, s.Reason)
			}
			if s.State == LeftOut && s.Reason == "" || len(s.Reason) > 1024 {
				t.Fatalf("%s is left out: %q", s.Pod, s.Reason)
			}
		}
		text, err := render([]byte(tlsBase), d.Replicas)
		if err == nil {
			_, err = config.Read(bytes.NewReader(text))
		}
		if err != nil {
			t.Fatalf("cannot be written: %v\n%s", err, text)
		}
	})
}

// tlsBase is baseText with what addresses off loopback need.
var tlsBase = strings.Replace(baseText, "models", "tls: {cert: '/c/{role}/{name}', key: '/k/{role}/{name}', ca: /ca, trust_domain: example.org}\nmigration: {mode: live}\nmodels", 1)

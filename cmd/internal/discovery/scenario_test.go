package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestScenarios plays testdata/*.txt.
//
//	models a b                    the fleet's models; begins anew
//	capacity a=8000               sets kv_tokens and batch of a model's later Pods by annotations
//	endpoints                     a Service selects the Pods
//	pod a-0 uid=1 ip=10.0.0.1     adds or changes a Pod: ready on node n1, unless fields say otherwise; a
//	                              field KEY/VALUE is an annotation, KEY/ removes it
//	delete a-0                    removes a Pod
//	endpoint a-0 port=9000        adds or changes its endpoint; ready=false
//	conditions                    discovery writes conditions; prints those that Pods should have
//	conditions written            the same, and the Pods have them from then on
//	conditions off                discovery writes none; those that Pods have stay
//	decide                        prints the decision and what has changed; an error keeps the last one
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player { return new(world).play })
}

type world struct {
	rules   Rules
	cluster Cluster
	last    Decision
}

// fleetOf returns a fleet file without replicas.
func fleetOf(models ...string) config.Fleet {
	f := config.Fleet{TLS: config.TLS{Cert: "/c/{role}/{name}", Key: "/k/{role}/{name}", CA: "/ca", TrustDomain: "example.org"}, Control: config.Control{Estimator: "m.wasm", AnyRemoval: true}}
	f.Migration.Mode = config.MigrationLive
	for _, m := range models {
		f.Models = append(f.Models, config.Model{Name: m, Context: 4096, Profile: "h200-llama-3.1-8b"})
	}
	return f
}

func (w *world) play(words []string) (out []string, err error) {
	args := words[1:]
	switch words[0] {
	case "models":
		*w = world{rules: Rules{Base: fleetOf(args...), PeerPort: 9100, EnginePort: 8000}, cluster: Cluster{Source: "InferencePool llm/pool", Port: 9000}}
	case "endpoints":
		w.cluster.ByEndpoints, w.cluster.Source, w.cluster.Port = true, "Service llm/svc", 0
	case "pod":
		return nil, w.setPod(args)
	case "delete":
		w.cluster.Pods = slices.DeleteFunc(w.cluster.Pods, func(p Pod) bool { return p.Name == args[0] })
		w.cluster.Endpoints = slices.DeleteFunc(w.cluster.Endpoints, func(e Endpoint) bool { return e.PodUID == "u-"+args[0] })
	case "endpoint":
		e := Endpoint{PodUID: "u-" + args[0], Ready: true}
		w.cluster.Endpoints = slices.DeleteFunc(w.cluster.Endpoints, func(o Endpoint) bool { return o.PodUID == e.PodUID })
		if err := testkit.SetFields(&e, args[1:]); err != nil {
			return nil, err
		}
		w.cluster.Endpoints = append(w.cluster.Endpoints, e)
	case "conditions":
		how := strings.Join(args, " ")
		if w.rules.SetsConditions = how != "off"; how == "off" {
			return nil, nil
		}
		for _, c := range Conditions(w.cluster, w.last) {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s: %v %s %s", c.Pod, c.Want.Ready, c.Want.Reason, c.Want.Message)))
			for i := range w.cluster.Pods {
				if p := &w.cluster.Pods[i]; how == "written" && p.UID == c.UID {
					p.Condition = &c.Want
				}
			}
		}
		return out, nil
	case "decide":
		return w.decide(), nil
	default:
		return nil, fmt.Errorf("unknown command")
	}
	return nil, nil
}

func (w *world) setPod(args []string) error {
	i := slices.IndexFunc(w.cluster.Pods, func(p Pod) bool { return p.Name == args[0] })
	if i < 0 {
		w.cluster.Pods = append(w.cluster.Pods, Pod{Name: args[0], UID: "u-" + args[0], Node: "n1", Ready: true, Settings: map[string]string{}})
		i = len(w.cluster.Pods) - 1
	}
	p := &w.cluster.Pods[i]
	for _, a := range args[1:] {
		if key, value, ok := strings.Cut(a, "/"); ok {
			if p.Settings[Prefix+key] = value; value == "" {
				delete(p.Settings, Prefix+key)
			}
		} else if err := testkit.SetFields(p, []string{a}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) decide() (out []string) {
	d, err := Decide(w.rules, w.cluster, w.last.Replicas)
	if err != nil {
		return []string{"error: " + err.Error()}
	}
	for _, r := range d.Replicas {
		line := fmt.Sprintf("%s: model %s at %s, peers %s, engine %s, host %s", r.ID, r.Model, r.Address, r.Peer, r.Engine, r.Host)
		if r.Admin != "" {
			line += ", admin " + r.Admin
		}
		if r.Profile != "" || r.TP != 0 || r.KVTokens != 0 || r.Batch != 0 || r.Role != "" {
			line += fmt.Sprintf(", profile %q tp %d kv %d batch %d role %q", r.Profile, r.TP, r.KVTokens, r.Batch, r.Role)
		}
		if r.Drain {
			line += ", drains"
		}
		out = append(out, line)
	}
	for _, c := range Changes(w.last, d) {
		line := fmt.Sprintf("  %s: %v", c.Pod, c.State)
		if c.Gone {
			line = "  " + c.Pod + ": gone"
		}
		if c.Reason != "" && !c.Gone {
			line += ": " + c.Reason
		}
		out = append(out, line)
	}
	w.last = d
	return out
}

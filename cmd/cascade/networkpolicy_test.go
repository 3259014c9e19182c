package main

import (
	"bytes"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// networkPolicy is the part of Kubernetes' NetworkPolicy (networking.k8s.io/v1) that deploy/vllm
// uses. The file must have no other fields: a misspelt one would open a port or close it.
type networkPolicy struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   map[string]string `yaml:"metadata"`
	Spec       struct {
		PodSelector podSelector `yaml:"podSelector"`
		PolicyTypes []string    `yaml:"policyTypes"`
		Ingress     []struct {
			From []struct {
				PodSelector podSelector `yaml:"podSelector"`
			} `yaml:"from"`
			Ports []struct {
				Port     int    `yaml:"port"`
				Protocol string `yaml:"protocol"`
			} `yaml:"ports"`
		} `yaml:"ingress"`
	} `yaml:"spec"`
}

type podSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

// TestNetworkPolicy checks that deploy/vllm/networkpolicy.yaml opens to others than the fleet's own
// pods exactly the ports of fleet.yaml that they need: clients' to Envoy, metrics to Prometheus. The
// engine's, the peers' and NIXL's of README.md stay closed.
func TestNetworkPolicy(t *testing.T) {
	read := func(name string) []byte {
		return testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "vllm", name)))
	}
	var p networkPolicy
	testkit.NoError(t, yaml.NewDecoder(bytes.NewReader(read("networkpolicy.yaml")), yaml.Strict()).Decode(&p))
	if p.APIVersion != "networking.k8s.io/v1" || p.Kind != "NetworkPolicy" || p.Metadata["name"] == "" || !slices.Equal(p.Spec.PolicyTypes, []string{"Ingress"}) {
		t.Errorf("%+v", p)
	}
	own := p.Spec.PodSelector.MatchLabels["app"]
	open := make(map[string][]int) // ports by app; none: all
	for i, rule := range p.Spec.Ingress {
		var ports []int
		for _, port := range rule.Ports {
			if port.Protocol != "TCP" {
				t.Errorf("rule %d: protocol %q", i, port.Protocol)
			}
			ports = append(ports, port.Port)
		}
		if len(rule.From) == 0 {
			t.Errorf("rule %d is for everyone", i)
		}
		for _, from := range rule.From {
			app := from.PodSelector.MatchLabels["app"]
			if _, twice := open[app]; app == "" || twice {
				t.Errorf("rule %d: pods %q: want each app in one rule", i, app)
			}
			open[app] = ports
		}
	}
	var fleet struct {
		Replicas []struct{ Address, Peer, Admin, Engine string }
	}
	testkit.NoError(t, yaml.Unmarshal(read("fleet.yaml"), &fleet))
	r := fleet.Replicas[0] // a pod has one replica, with the first one's ports
	port := func(address string) int {
		_, text, err := net.SplitHostPort(address)
		testkit.NoError(t, err)
		return testkit.Must(net.LookupPort("tcp", text))
	}
	want := map[string][]int{own: nil, "envoy": {port(r.Address)}, "prometheus": {port(r.Admin)}}
	if len(open) != len(want) {
		t.Errorf("open to %v, want %v", open, want)
	}
	for app, ports := range want {
		if got, ok := open[app]; !ok || !slices.Equal(got, ports) {
			t.Errorf("open to %s: %v, want %v", app, got, ports)
		}
	}
	readme := string(read("README.md"))
	nixl := regexp.MustCompile(`VLLM_NIXL_SIDE_CHANNEL_PORT=(\d+)`).FindStringSubmatch(readme)
	if nixl == nil || !regexp.MustCompile(`side channel \(ports `+nixl[1]+` and up\)[^\n]*\(networkpolicy\.yaml\)`).MatchString(readme) {
		t.Errorf("README.md does not say of port %v what networkpolicy.yaml closes", nixl)
	}
	engine := testkit.Must(url.Parse(r.Engine))
	for _, closed := range []int{port(engine.Host), port(r.Peer), port(":" + nixl[1])} {
		for app, ports := range open {
			if app != own && slices.Contains(ports, closed) {
				t.Errorf("port %d is open to %s", closed, app)
			}
		}
	}
}

package client

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestScenarios runs testdata/*.txt (see testkit.TestScenarios; -rewrite rewrites the
// output): each command is followed by the machine's output.
//
//	connect | disconnect | after DURATION
//	KIND NONCE name=VALUE … -name …     a response; - removes
//
// Values: CDS c=service, c=static, c=bad; EDS e=port,port; LDS l=table/slot/…; RDS
// r=cluster, r=bad; ECDS x=ok, x=type. name=nil is a heartbeat. A version is a hash of
// the value.
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player {
		m, now := newMachine(&corev3.Node{Id: "n"}), time.Unix(1000, 0)
		return func(words []string) (out []string, err error) {
			var requests []*discoveryv3.DeltaDiscoveryRequest
			switch words[0] {
			case "connect":
				requests = m.connect(now)
			case "disconnect":
				m.disconnect()
			case "after":
				d, err := time.ParseDuration(words[1])
				if err != nil {
					return nil, err
				}
				now = now.Add(d)
				requests = m.tick(now)
			default:
				requests, _ = m.receive(now, response(t, words[0], strings.Join(words[1:], " ")))
			}
			for _, r := range requests {
				out = append(out, "> "+render(r))
			}
			if s := m.snapshot(); s != nil {
				out = append(out, fmt.Sprintf("= listeners%v routes%v clusters%v endpoints%v extensions%v",
					keys(s.Listeners), keys(s.Routes), keys(s.Clusters), keys(s.Assignments), keys(s.Extensions)))
			}
			if d := m.deadline(); !d.IsZero() {
				out = append(out, fmt.Sprintf("deadline in %v", d.Sub(now)))
			}
			return out, nil
		}
	})
}

func keys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

func response(t *testing.T, word, rest string) *discoveryv3.DeltaDiscoveryResponse {
	fields := strings.Fields(rest)
	r := &discoveryv3.DeltaDiscoveryResponse{Nonce: fields[0], TypeUrl: "type.googleapis.com/unknown"}
	for k := range kinds {
		if k.String() == word {
			r.TypeUrl = k.spec().url
		}
	}
	for _, f := range fields[1:] {
		if name, removed := strings.CutPrefix(f, "-"); removed {
			r.RemovedResources = append(r.RemovedResources, name)
			continue
		}
		name, value, _ := strings.Cut(f, "=")
		var p proto.Message
		switch {
		case value == "nil":
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: "v:" + value})
			continue
		case value == "junk":
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: "v:" + value,
				Resource: &anypb.Any{TypeUrl: r.TypeUrl, Value: []byte{0xff, 0xff}}})
			continue
		case word == "CDS" && value == "bad":
			c := edsCluster(name, name)
			c.LbPolicy = 3
			p = c
		case word == "CDS" && value == "static":
			p = staticCluster(name)
		case word == "CDS":
			p = edsCluster(name, value)
		case word == "EDS":
			var ports []uint32
			for s := range strings.SplitSeq(value, ",") {
				n, err := strconv.Atoi(s)
				if err != nil {
					t.Fatal(err)
				}
				ports = append(ports, uint32(n))
			}
			p = loadAssignment(name, ports...)
		case word == "LDS":
			parts := strings.Split(value, "/")
			p = listener(t, name, parts[0], parts[1:]...)
		case word == "RDS" && value == "bad":
			rt := routeTable(name, "x")
			rt.VirtualHosts[0].Routes[0].Action = nil
			p = rt
		case word == "RDS":
			p = routeTable(name, value)
		case word == "ECDS" && value == "type":
			p = extension(t, name, &routerv3.Router{})
		case word == "ECDS":
			p = extension(t, name, &headermutationv3.HeaderMutation{})
		default:
			t.Fatalf("what is %q?", f)
		}
		r.Resources = append(r.Resources, resourceOf(t, name, "v:"+value, p))
	}
	return r
}

func render(r *discoveryv3.DeltaDiscoveryRequest) string {
	k, _ := kindOf(r.GetTypeUrl())
	s := k.String()
	if r.GetNode() != nil {
		s += " node=" + r.GetNode().GetId()
	}
	if n := r.GetResourceNamesSubscribe(); len(n) > 0 {
		s += " subscribe=" + strings.Join(n, ",")
	}
	if n := r.GetResourceNamesUnsubscribe(); len(n) > 0 {
		s += " unsubscribe=" + strings.Join(n, ",")
	}
	for _, n := range keys(r.GetInitialResourceVersions()) {
		s += " have:" + n + "@" + r.GetInitialResourceVersions()[n]
	}
	if r.GetResponseNonce() != "" && r.GetErrorDetail() == nil {
		s += " ACK " + r.GetResponseNonce()
	}
	if e := r.GetErrorDetail(); e != nil {
		s += fmt.Sprintf(" NACK %s code %d %q", r.GetResponseNonce(), e.GetCode(), e.GetMessage())
	}
	return s
}

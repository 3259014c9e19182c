package routing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestScenarios runs testdata/*.txt (see testkit.TestScenarios; -rewrite rewrites the
// output): each command is followed by the machine's output. The client has the slots a and
// b.
//
//	connect
//	plan NONCE VALUE…   a response of plans: an epoch, "observer" (of another name), "renamed",
//	                    "empty", "junk", "other" (another type) or "nil" (a heartbeat)
//	slots NONCE name=VALUE … -name …   a response of slots: a word, "refused", "junk" or "nil"
//	unknown NONCE       a response of a type that is not subscribed
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		m := newMachine(&corev3.Node{Id: "n"}, []string{"a", "b"}, func(_ string, typed *anypb.Any) error {
			if word := new(wrapperspb.StringValue); typed.UnmarshalTo(word) != nil || word.Value == "refused" {
				return errors.New("signature: unknown key; add it to policies.keys")
			}
			return nil
		})
		return func(words []string) (out []string, err error) {
			requests, last := m.connect(), m.held
			if words[0] != "connect" {
				if requests, err = m.receive(response(words[0], words[1], words[2:])); err != nil {
					out = append(out, "log "+err.Error())
				}
			}
			for _, r := range requests {
				out = append(out, "> "+render(r))
			}
			if s := m.snapshot(); s != nil {
				out = append(out, "= "+describe(s))
				if last.Routing != nil && s.Routing == nil {
					out = append(out, "the plan is lost")
				}
			}
			return out, nil
		}
	})
}

func describe(s *Snapshot) string {
	out := "no plan"
	if s.Plan() != nil {
		out = fmt.Sprintf("plan %d@%s", s.Routing.Epoch, s.Version)
	}
	for _, name := range []string{"a", "b"} {
		if slot := s.Slots[name]; slot != nil {
			out += fmt.Sprintf(" %s@%s", name, slot.Version)
		}
	}
	return out
}

// planResource returns an encoded plan of an epoch, under a name.
func planResource(name string, epoch policies.Epoch) *discoveryv3.Resource {
	plan := policies.OneStagePlan("m", []policies.ReplicaID{"r"})
	plan.Epoch = epoch
	set := testkit.Must(resources.Build(resources.View{
		Models: []resources.Model{{Name: "m", Context: 1000}}, Plans: []policies.Plan{plan},
		Endpoints: []resources.Endpoint{{Replica: policies.Replica{ID: "r", Model: "m", Address: "127.0.0.1:1"}}},
	}))
	r := set.Get(resources.RoutingType, name)
	return &discoveryv3.Resource{Name: name, Version: fmt.Sprint("v", epoch), Resource: &anypb.Any{TypeUrl: r.Type,
		Value: r.Body}}
}

func packed(name, version string, m proto.Message) *discoveryv3.Resource {
	return &discoveryv3.Resource{Name: name, Version: version, Resource: testkit.Must(anypb.New(m))}
}

func response(kind, nonce string, words []string) *discoveryv3.DeltaDiscoveryResponse {
	name := resources.RoutingName("")
	junk := func(typ, name string) *discoveryv3.Resource {
		return &discoveryv3.Resource{Name: name, Version: "junk", Resource: &anypb.Any{TypeUrl: typ,
			Value: []byte{0xff, 0xff}}}
	}
	r := &discoveryv3.DeltaDiscoveryResponse{Nonce: nonce, TypeUrl: "type.googleapis.com/unknown"}
	for _, w := range words {
		slot, value, isSlot := strings.Cut(w, "=")
		if kind == "plan" {
			slot, value = name, w
		}
		var add *discoveryv3.Resource
		switch {
		case strings.HasPrefix(w, "-"):
			r.RemovedResources = append(r.RemovedResources, w[1:])
			continue
		case value == "nil":
			add = &discoveryv3.Resource{Name: slot, Version: "nil"}
		case value == "junk" && isSlot:
			add = junk(resources.ExtensionType, slot)
		case isSlot:
			add = packed(slot, "v-"+value, &corev3.TypedExtensionConfig{Name: slot,
				TypedConfig: testkit.Must(anypb.New(wrapperspb.String(value)))})
		case value == "junk":
			add = junk(resources.RoutingType, name)
		case value == "other":
			add = packed(name, "other", wrapperspb.String("x"))
		case value == "empty":
			add = packed(name, "empty", &api.Routing{Name: name})
		case value == "renamed":
			add = packed(name, "renamed", &api.Routing{Name: "else"})
		case value == "observer":
			add = planResource(resources.ObserverCluster, 9)
		default:
			var epoch policies.Epoch
			_, _ = fmt.Sscan(value, &epoch)
			add = planResource(name, epoch)
		}
		r.Resources = append(r.Resources, add)
	}
	switch kind {
	case "plan":
		r.TypeUrl = resources.RoutingType
	case "slots":
		r.TypeUrl = resources.ExtensionType
	}
	return r
}

func render(r *discoveryv3.DeltaDiscoveryRequest) string {
	s := r.GetTypeUrl()[strings.LastIndexByte(r.GetTypeUrl(), '.')+1:]
	if r.GetNode() != nil {
		s += " node=" + r.GetNode().GetId()
	}
	if n := r.GetResourceNamesSubscribe(); len(n) > 0 {
		s += " subscribe=" + strings.Join(n, ",")
	}
	for _, n := range []string{resources.RoutingName(""), "a", "b"} {
		if v, ok := r.GetInitialResourceVersions()[n]; ok {
			s += " have:" + n + "@" + v
		}
	}
	if r.GetResponseNonce() != "" && r.GetErrorDetail() == nil {
		s += " ACK " + r.GetResponseNonce()
	}
	if e := r.GetErrorDetail(); e != nil {
		s += fmt.Sprintf(" NACK %s code %d %q", r.GetResponseNonce(), e.GetCode(), e.GetMessage())
		list := new(errdetails.BadRequest)
		if len(e.GetDetails()) != 1 || e.GetDetails()[0].UnmarshalTo(list) != nil || len(list.FieldViolations) == 0 {
			s += " without details"
		}
		for _, v := range list.GetFieldViolations() {
			if !strings.Contains(e.GetMessage(), v.GetField()+": "+v.GetDescription()) {
				s += fmt.Sprintf(", of %s %q", v.GetField(), v.GetDescription())
			}
		}
	}
	return s
}

// TestObserverName checks that an observer subscribes to the plan without weights.
func TestObserverName(t *testing.T) {
	r := newMachine(&corev3.Node{Id: "n", Cluster: resources.ObserverCluster}, nil, nil).connect()
	if len(r) != 1 || render(r[0]) != "Routing node=n subscribe=cascade-observer" {
		t.Errorf("%v", r)
	}
}

// TestNACKIsBounded checks that the text of a NACK is valid UTF-8 of bounded length, whatever
// the resource.
func TestNACKIsBounded(t *testing.T) {
	m := newMachine(&corev3.Node{Id: "n"}, nil, nil)
	p := new(api.Routing)
	p.Name = "cascade"
	p.Models = []*api.RoutedModel{{Name: strings.Repeat("ä", 5000)}}
	out, err := m.receive(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: resources.RoutingType,
		Resources: []*discoveryv3.Resource{packed(p.Name, "1", p)}})
	text := out[0].GetErrorDetail().GetMessage()
	if err == nil || len(text) > maxDetail+len("…") || strings.ToValidUTF8(text, "") != text || !strings.HasPrefix(text, `cascade: models[0] "ä`) {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
}

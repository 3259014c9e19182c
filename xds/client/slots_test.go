package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// slotResource returns a slot's extension config that contains a word.
func slotResource(t *testing.T, name, word string) *discoveryv3.Resource {
	return resourceOf(t, name, "v-"+word, extension(t, name, wrapperspb.String(word)))
}

// TestSlots checks that slots are subscribed to without a listener, from the first
// request of every stream on. A config that is not accepted is NACKed with the error
// text, the previous one stays, and the other configs of the same response are applied.
func TestSlots(t *testing.T) {
	m := newMachine(nil)
	m.subscribeSlots([]string{"b", "a"}, func(name string, typed *anypb.Any) error {
		w := new(wrapperspb.StringValue)
		if err := typed.UnmarshalTo(w); err != nil {
			return err
		}
		if w.GetValue() == "bad" {
			return errors.New("not signed")
		}
		return nil
	})
	ecds := func(version string, rs ...*discoveryv3.Resource) *discoveryv3.DeltaDiscoveryResponse {
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensions.spec().url, Nonce: version, Resources: rs}
	}
	var asked []string
	for _, r := range m.connect(time.Now()) {
		if r.GetTypeUrl() == extensions.spec().url {
			asked = append(asked, r.GetResourceNamesSubscribe()...)
		}
	}
	if strings.Join(asked, " ") != "a b" {
		t.Fatalf("asks for %v", asked)
	}
	out, err := m.receive(time.Now(), ecds("1", slotResource(t, "a", "one"), slotResource(t, "b", "bad")))
	if err == nil || len(out) != 1 || !strings.Contains(out[0].GetErrorDetail().GetMessage(), "b: not signed") {
		t.Fatal(out, err)
	}
	s := m.snapshot()
	if s == nil || len(s.Slots) != 1 || s.Slots["a"].Version != "v-one" || len(s.Extensions) != 0 {
		t.Fatalf("%+v", s)
	}
	want, _ := anypb.New(wrapperspb.String("one"))
	if !proto.Equal(s.Slots["a"].Config, want) {
		t.Error(s.Slots["a"].Config)
	}
	if out, err = m.receive(time.Now(), ecds("2", slotResource(t, "a", "bad"), slotResource(t, "b", "two"))); err == nil || out[0].GetErrorDetail() == nil {
		t.Fatal(out, err)
	}
	if s = m.snapshot(); s.Slots["a"].Version != "v-one" || s.Slots["b"].Version != "v-two" {
		t.Fatalf("%+v", s.Slots)
	}
	// A new stream begins with the versions that the client has, so that they are not
	// sent again.
	m.disconnect()
	held := map[string]string{}
	for _, r := range m.connect(time.Now()) {
		for name, version := range r.GetInitialResourceVersions() {
			held[name] = version
		}
	}
	if held["a"] != "v-one" || held["b"] != "v-two" {
		t.Error(held)
	}
	if _, err := m.receive(time.Now(), &discoveryv3.DeltaDiscoveryResponse{TypeUrl: extensions.spec().url, Nonce: "3", RemovedResources: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if s = m.snapshot(); s.Slots["a"] != nil || s.Slots["b"] == nil {
		t.Errorf("%+v", s.Slots)
	}
	if _, err := New(Config{Target: "x", NodeID: "n", Slots: make([]string, 1)}); err == nil {
		t.Error("a slot without a name is taken")
	}
}

package publish

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// body returns an encoded resource with a name, as every type begins.
func body(name string) []byte {
	return append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name), 0x10, 1)
}

// set returns clusters: "a@1" has version 1, a bare name the content hash of its body; one
// behind "-" is unlisted.
func set(text string) resources.Set {
	var all []*resources.Resource
	for _, f := range strings.Fields(text) {
		f, unlisted := strings.CutPrefix(f, "-")
		name, v, given := strings.Cut(f, "@")
		if !given {
			v = resources.Version(body(name))
		}
		all = append(all, &resources.Resource{Type: resources.ClusterType, Name: name, Version: v, Body: body(name), Unlisted: unlisted})
	}
	return testkit.Must(resources.NewSet(all...))
}

// client is a subscription to clusters with its server's nonces.
type client struct {
	subscription
	nonce int
}

func (c *client) lacks(text string) bool {
	return c.isBehind(newVersions(set(text), []string{resources.ClusterType}), resources.ClusterType)
}

// delta sends a request of the incremental protocol: names to subscribe to, and behind "-"
// to unsubscribe from.
func (c *client) delta(text string) {
	req := &discoveryv3.DeltaDiscoveryRequest{}
	for _, f := range strings.Fields(text) {
		if name, minus := strings.CutPrefix(f, "-"); minus {
			req.ResourceNamesUnsubscribe = append(req.ResourceNamesUnsubscribe, name)
		} else {
			req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, f)
		}
	}
	c.applyDelta(req)
}

// serve sends a response of the incremental protocol, and returns its nonce.
func (c *client) serve(text string) string {
	c.nonce++
	c.addSent(deltaResponse(responseOf(resources.ClusterType, c.nonce, text)))
	return fmt.Sprint(c.nonce)
}

// serveSotW sends all clusters, and returns the nonce.
func (c *client) serveSotW(names string) string {
	c.nonce++
	r := &discoveryv3.DiscoveryResponse{TypeUrl: resources.ClusterType, Nonce: fmt.Sprint(c.nonce)}
	for _, name := range strings.Fields(names) {
		r.Resources = append(r.Resources, &anypb.Any{Value: body(name)})
	}
	c.addSent(sotwResponse(r))
	return r.Nonce
}

// TestDeltaSubscription checks what a client of the incremental protocol lacks.
func TestDeltaSubscription(t *testing.T) {
	named := new(client)
	named.delta("a b")
	if !named.lacks("a@1") || named.lacks("c@1") {
		t.Error("a client of a and b waits for something else")
	}
	named.acknowledge(named.serve("a@1 b@1"))
	if named.lacks("a@1 b@1 c@1") || !named.lacks("a@2 b@1") {
		t.Error("versions 1 of a and b are acknowledged")
	}
	if !named.lacks("a@1") {
		t.Error("it still has b, which was removed")
	}
	named.delta("-b")
	if named.lacks("a@1") || named.lacks("a@1 b@2") || !named.lacks("a@2") {
		t.Error("it subscribes to a alone")
	}
	named.delta("*")
	if !named.lacks("a@1 c@1") || named.lacks("a@1 -c@1") {
		t.Error("a wildcard is for all that are listed")
	}
	named.acknowledge(named.serve("c@1"))
	named.delta("-a")
	if named.lacks("a@1 c@1") || !named.lacks("c@1") {
		t.Error("the wildcard still includes a")
	}
	named.delta("-*")
	if named.lacks("a@2 c@2 d@1") {
		t.Error("it subscribes to nothing any more")
	}

	all := new(client) // it never gave a name
	all.delta("")
	if !all.lacks("a@1") {
		t.Error("a client without names waits for all")
	}
	all.acknowledge(all.serve("a@1 b@1"))
	if all.lacks("a@1 b@1") || !all.lacks("a@1") {
		t.Error("it has a and b")
	}
	if nonce := all.serve("-b"); !all.lacks("a@1 b@1") {
		t.Error("a response without a reply counts for nothing")
	} else if all.acknowledge(nonce); all.lacks("a@1") {
		t.Error("b was removed")
	}
	before := all.serve("a@3")
	all.acknowledge(all.serve("a@4"))
	if !all.lacks("a@4") {
		t.Error("the response before was not answered")
	}
	if all.acknowledge(before); all.lacks("a@3") {
		t.Error("the last reply counts")
	}
	for range maxSent + 9 {
		all.serve("a@5")
	}
	if len(all.sent) != maxSent || all.sent[maxSent-1].nonce != fmt.Sprint(all.nonce) {
		t.Errorf("%d responses are remembered, the last is %s of %d", len(all.sent), all.sent[len(all.sent)-1].nonce, all.nonce)
	}
}

// TestSotWSubscription checks what a client lacks that lists all names in every request.
func TestSotWSubscription(t *testing.T) {
	request := func(c *client, nonce string, names ...string) {
		c.acknowledge(nonce)
		c.applySotW(&discoveryv3.DiscoveryRequest{ResourceNames: names})
	}
	all := new(client)
	request(all, "")
	if !all.lacks("a") {
		t.Error("a client without names waits for all")
	}
	request(all, all.serveSotW("a b"))
	if all.lacks("a b") || all.lacks("a") || !all.lacks("a b c") || all.lacks("a b -c") {
		t.Error("it has a and b")
	}
	request(all, all.serveSotW("a"))
	if !all.lacks("a b") {
		t.Error("a complete response without b removes it")
	}
	all.serveSotW("a b")
	if !all.lacks("a") {
		t.Error("a response without a reply counts for nothing")
	}
	if request(all, all.serveSotW("a b c")); all.lacks("a b c") || len(all.sent) > 0 {
		t.Error("the answer to a response is one to those before it")
	}
	request(all, "", "a")
	if all.lacks("a b c d") || !all.lacks("a@other") {
		t.Error("it has asked for a alone")
	}
	if request(all, ""); all.lacks("a b c d") {
		t.Error("a client that has given a name and gives none any more waits for nothing")
	}

	named := new(client)
	request(named, "", "a")
	if named.lacks("b") || !named.lacks("a") {
		t.Error("it has asked for a alone")
	}
	if request(named, ""); named.lacks("a b") {
		t.Error("a client that began with a name is none for all")
	}
	if request(named, "", "*"); !named.lacks("b") {
		t.Error("a wildcard is for all")
	}
}

// TestNameOf checks that bodies which are no resources have no name.
func TestNameOf(t *testing.T) {
	for text, want := range map[string]string{
		string(body("cascade")):   "cascade",
		"":                        "",
		"\x80":                    "", // an unfinished tag
		"\x12\x01x":               "", // field 2
		"\x08\x01":                "", // field 1 is a number
		"\x0a\x09short":           "",
		"\x0a\x00":                "",
		string(body("x"))[:2]:     "",
		string(body("")) + "more": "",
	} {
		if got := nameOf([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestBodiesAreReadWhenSent checks that a state-of-the-world response is hashed once, when it is
// sent and before the ledger is locked: an ACK reads no body.
func TestBodiesAreReadWhenSent(t *testing.T) {
	w := &wire{Ledger: NewLedger(nil), t: t}
	testkit.NoError(t, w.OnStreamOpen(t.Context(), 1, ""))
	request := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: resources.ClusterType}
	testkit.NoError(t, w.OnStreamRequest(1, request))
	sent := &anypb.Any{Value: body("a")}
	w.OnStreamResponse(t.Context(), 1, request, &discoveryv3.DiscoveryResponse{TypeUrl: resources.ClusterType, Nonce: "1", Resources: []*anypb.Any{sent}})
	sent.Value = nil
	testkit.NoError(t, w.OnStreamRequest(1, &discoveryv3.DiscoveryRequest{TypeUrl: resources.ClusterType, ResponseNonce: "1"}))
	if f := w.ask("", "a", clusterTypes); len(f.late) > 0 {
		t.Errorf("%v lack the cluster that was sent", f.late)
	}
}

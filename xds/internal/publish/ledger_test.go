package publish_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// behind lists the nodes that have not acknowledged the set.
func behind(l *publish.Ledger, set resources.Set, types ...string) string {
	ids := make(map[string]bool)
	l.Behind(set, types, ids)
	return strings.Trim(fmt.Sprint(ids), "map[]")
}

func snapshotOf(t *testing.T, v resources.View) *planrollout.Snapshot {
	t.Helper()
	snapshot, err := planrollout.NewSnapshot(v, resources.Prove)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func TestLedgerRefusesNodesWithoutID(t *testing.T) {
	l := publish.NewLedger(nil)
	for i, n := range []*corev3.Node{nil, {}, {Id: strings.Repeat("x", 257)}} {
		l.OnDeltaStreamOpen(t.Context(), int64(i), "")
		err := l.OnStreamDeltaRequest(int64(i), &discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: resources.ClusterType})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("node %v: %v", n, err)
		}
		l.OnDeltaStreamClosed(int64(i), n)
	}
}

// TestLedgerTrimsNode checks that the server keeps little of an Envoy's node
// message.
func TestLedgerTrimsNode(t *testing.T) {
	l := publish.NewLedger(nil)
	l.OnDeltaStreamOpen(t.Context(), 1, "")
	n := &corev3.Node{Id: "n", Cluster: "edge", Extensions: make([]*corev3.Extension, 516), ClientFeatures: []string{"x"}}
	if err := l.OnStreamDeltaRequest(1, &discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: resources.ClusterType}); err != nil {
		t.Fatal(err)
	}
	if n.Extensions != nil || n.ClientFeatures != nil || n.Id != "n" || n.Cluster != "edge" {
		t.Errorf("node message kept: %v", n)
	}
}

// TestLedgerOneNodeManyStreams has a node with one stream per type, as in a
// mesh.
func TestLedgerOneNodeManyStreams(t *testing.T) {
	l := publish.NewLedger(nil)
	old := snapshotOf(t, view(1, []policies.Tokens{10}, "a", "b"))
	now := snapshotOf(t, view(2, []policies.Tokens{10}, "a", "b c"))
	r, e := old.Set.Get(resources.RouteType, resources.RouteName), old.Set.Get(resources.EndpointType, resources.EndpointName("m", 1))
	node := &corev3.Node{Id: "n"}
	for id, res := range map[int64]*resources.Resource{1: r, 2: e} {
		l.OnDeltaStreamOpen(t.Context(), id, res.Type)
		req := &discoveryv3.DeltaDiscoveryRequest{
			Node: node, TypeUrl: res.Type, ResourceNamesSubscribe: []string{res.Name},
			InitialResourceVersions: map[string]string{res.Name: res.Version},
		}
		if err := l.OnStreamDeltaRequest(id, req); err != nil {
			t.Fatal(err)
		}
	}
	both := []string{resources.EndpointType, resources.RouteType}
	if got := behind(l, old.Set, both...); got != "" {
		t.Errorf("behind with the versions that it brought: %q", got)
	}
	if behind(l, now.Set, resources.EndpointType) == "" || behind(l, now.Set, resources.RouteType) == "" {
		t.Error("not behind with a new version")
	}
	answer := func(id int64, res *resources.Resource, nonce, refusal string) {
		t.Helper()
		l.OnStreamDeltaResponse(id, nil, &discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: res.Type, Nonce: nonce, Resources: []*discoveryv3.Resource{{Name: res.Name, Version: res.Version}},
		})
		if got := behind(l, now.Set, res.Type); got == "" {
			t.Error("not behind before its reply")
		}
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: res.Type, ResponseNonce: nonce}
		if refusal != "" {
			req.ErrorDetail = &rpcstatus.Status{Code: 13, Message: refusal}
		}
		if err := l.OnStreamDeltaRequest(id, req); err != nil {
			t.Fatal(err)
		}
	}
	answer(2, now.Set.Get(resources.EndpointType, e.Name), "1", "")
	if got := behind(l, now.Set, resources.EndpointType); got != "" {
		t.Errorf("behind after its ACK: %q", got)
	}
	answer(1, now.Set.Get(resources.RouteType, r.Name), "1", "bad\nroute \xff"+strings.Repeat("ä", 1000))
	if behind(l, now.Set, resources.RouteType) == "" {
		t.Error("not behind after its NACK")
	}
	p, err := publish.New(publish.Config{Cache: cache.New(cache.Config{}), Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	n := p.Status().Nodes[0]
	if n.NACKs != 1 || !strings.HasPrefix(n.LastError, "bad route ?ä") || len(n.LastError) > 310 || !n.Connected {
		t.Errorf("status %+v", n)
	}
	if got := n.Types["RouteConfiguration"]; got.Acked != 1 || got.Pending != 0 {
		t.Errorf("status of routes %+v", got)
	}
	l.OnDeltaStreamClosed(1, node)
	if n := p.Status().Nodes[0]; !n.Connected {
		t.Error("disconnected although one of two streams is open")
	}
	l.OnDeltaStreamClosed(2, node)
	if n := p.Status().Nodes[0]; n.Connected || n.Current {
		t.Errorf("not disconnected: %+v", n)
	}
}

// TestNodesOfARestartedControlPlane checks that proxies are not current before a new process has published a plan. One
// that reconnects is then known to have it by the versions that its first requests name.
func TestNodesOfARestartedControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := view(7, []policies.Tokens{10}, "a", "b")
		had := snapshotOf(t, v).Set
		l := publish.NewLedger(nil)
		testkit.NoError(t, l.OnDeltaStreamOpen(t.Context(), 1, ""))
		for _, typ := range planrollout.AwaitedTypes() {
			r := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "envoy"}, TypeUrl: typ, InitialResourceVersions: make(map[string]string)}
			for _, has := range had.All(typ) {
				r.InitialResourceVersions[has.Name] = has.Version
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, has.Name)
			}
			testkit.NoError(t, l.OnStreamDeltaRequest(1, r))
		}
		testkit.NoError(t, l.OnDeltaStreamOpen(t.Context(), 2, ""))
		testkit.NoError(t, l.OnStreamDeltaRequest(2, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "new"}, TypeUrl: resources.ClusterType}))
		p := testkit.Must(publish.New(publish.Config{Cache: cache.New(cache.Config{}), Ledger: l}))
		for _, n := range p.Status().Nodes {
			if n.State != "following" || n.Epoch != 0 || !strings.Contains(n.Reason, "published no plan yet") {
				t.Errorf("%s before the first plan: %s, epoch %d, %q", n.ID, n.State, n.Epoch, n.Reason)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		p.Submit(v)
		synctest.Wait()
		if n := p.Status().Nodes[0]; n.State != "current" || n.Epoch != 7 || n.Reason != "" {
			t.Errorf("after it: %s, epoch %d, %q", n.State, n.Epoch, n.Reason)
		}
		cancel()
		<-done
	})
}

// TestLedgerSotW has clients that list all names in every request.
func TestLedgerSotW(t *testing.T) {
	l := publish.NewLedger(nil)
	now := snapshotOf(t, view(1, []policies.Tokens{10}, "a", "b"))
	names := []string{resources.EndpointName("m", 0), resources.EndpointName("m", 1)}
	l.OnStreamOpen(t.Context(), 1, "")
	request := func(nonce string, names ...string) {
		t.Helper()
		err := l.OnStreamRequest(1, &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "g"}, TypeUrl: resources.EndpointType, ResourceNames: names, ResponseNonce: nonce})
		if err != nil {
			t.Fatal(err)
		}
	}
	send := func(nonce string, names ...string) {
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: resources.EndpointType, Nonce: nonce}
		for _, name := range names {
			resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: resources.EndpointType, Value: now.Set.Get(resources.EndpointType, name).Body})
		}
		l.OnStreamResponse(t.Context(), 1, nil, resp)
	}
	late := func(want string) {
		t.Helper()
		if got := behind(l, now.Set, resources.EndpointType); got != want {
			t.Errorf("behind: %q, want %q", got, want)
		}
	}
	request("", names[0])
	late("g:true")
	send("1", names[0])
	request("1", names[0])
	late("")
	request("1", names...) // one more name
	late("g:true")
	send("2", names[1]) // only the new resource
	request("2", names...)
	late("")
	request("2", names[1])
	late("")
	request("2", names...) // the first one again
	late("g:true")
	l.OnStreamClosed(1, nil)
	late("")
}

func TestLedgerForgetsDisconnectedNodes(t *testing.T) {
	l := publish.NewLedger(nil)
	for i := range int64(1000) {
		n := &corev3.Node{Id: fmt.Sprint("n", i)}
		l.OnDeltaStreamOpen(t.Context(), i, "")
		if err := l.OnStreamDeltaRequest(i, &discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: resources.ClusterType}); err != nil {
			t.Fatal(err)
		}
		if i < 990 {
			l.OnDeltaStreamClosed(i, n)
		}
	}
	p, err := publish.New(publish.Config{Cache: cache.New(cache.Config{}), Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.Status().Nodes); n != 256+10 {
		t.Errorf("%d nodes remembered", n)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []publish.Config{{}, {Cache: cache.New(cache.Config{})}, {Cache: cache.New(cache.Config{}), Ledger: publish.NewLedger(nil), AckTimeout: -1}} {
		if _, err := publish.New(c); err == nil {
			t.Errorf("New accepted %+v", c)
		}
	}
}

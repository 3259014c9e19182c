package routing

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// TestSeveralServers checks that a client whose control plane is unreachable connects
// to the next one with the versions that it has, and begins with the first one again
// when that connection is lost.
func TestSeveralServers(t *testing.T) {
	one, first := serve(t)
	two, second := serve(t)
	u, c := follow(t, Config{Conn: &deadConn{}, OtherServers: []Server{{Conn: first}, {Conn: second}}})
	one.expect(t, "Routing node=n1 subscribe=cascade")
	<-u
	one.responses <- response("plan", "1", []string{"7"})
	one.expect(t, "Routing ACK 1")
	<-u
	first.Close()
	two.expect(t, "Routing node=n1 subscribe=cascade have:cascade@v7")
	two.responses <- response("plan", "1", []string{"8"})
	two.expect(t, "Routing ACK 1")
	if got := <-u; got.Routing.Epoch != 8 || !c.Connected() {
		t.Fatalf("want plan 8, have %+v", got)
	}
	if _, err := New(Config{Conn: first, NodeID: "n1", OtherServers: []Server{{}}}); err == nil {
		t.Error("a server without an address is taken")
	}
}

// TestServerWithoutNews checks that a client which goes to another control plane with the plan that this one has, too,
// is connected to it, and that OnStream runs: its proxy reports loads there.
func TestServerWithoutNews(t *testing.T) {
	view := resources.View{
		Models: []resources.Model{{Name: "m", Context: 8192}}, Plans: []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r"})},
		Endpoints: []resources.Endpoint{{Replica: policies.Replica{ID: "r", Model: "m", Address: "10.0.0.1:80"}}},
	}
	plane := func() (conn *grpc.ClientConn, stop func()) {
		c := cache.New(cache.Config{})
		c.Set("", testkit.Must(resources.Build(view)))
		g := grpc.NewServer()
		testkit.Must(server.New(server.Config{Cache: c})).Register(t.Context(), g)
		return memgrpc.Serve(t, g)
	}
	first, stop := plane()
	second, _ := plane()
	streams := make(chan grpc.ClientConnInterface, 10)
	u, c := follow(t, Config{Conn: first, OtherServers: []Server{{Conn: second}},
		OnStream: func(_ context.Context, conn grpc.ClientConnInterface) { streams <- conn }})
	<-u // empty
	if got := <-u; got.Plan() == nil || <-streams != first {
		t.Fatal("the first control plane is not followed")
	}
	stop()
	testkit.WaitFor(t, "the second control plane", c.Connected)
	if <-streams != second {
		t.Error("OnStream ran for another connection")
	}
}

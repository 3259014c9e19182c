package routing

import (
	"testing"
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

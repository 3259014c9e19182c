package client

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
	one.expect(t, "CDS node=n1")
	<-u
	one.responses <- response(t, "CDS", "1 a=static")
	one.expect(t, "LDS")
	one.expect(t, "CDS ACK 1")
	<-u
	first.Close()
	two.expect(t, "CDS node=n1 have:a@v:static")
	two.expect(t, "LDS")
	two.responses <- response(t, "CDS", "1 b=static -a")
	two.expect(t, "CDS ACK 1")
	if got := <-u; got.Clusters["a"] != nil || got.Clusters["b"] == nil || !c.Connected() {
		t.Fatalf("want b alone, have %v", keys(got.Clusters))
	}
	if _, err := New(Config{Conn: first, NodeID: "n1", OtherServers: []Server{{}}}); err == nil {
		t.Error("a server without an address is taken")
	}
}

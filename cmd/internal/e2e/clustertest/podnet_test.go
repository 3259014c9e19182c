package clustertest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestNetwork has programs listen on the same port of every address in two namespaces: each is
// reached at its own address, from here and from the other one.
func TestNetwork(t *testing.T) {
	if !Isolate(t) {
		return
	}
	if all := testkit.Must(net.Interfaces()); len(all) != 1 {
		t.Fatalf("the test is not isolated: %v", all)
	}
	n := testkit.Must(NewNetwork(netip.MustParsePrefix("10.7.0.0/29")))
	var pods []*Namespace
	for i := range 2 {
		address := testkit.Must(n.Address())
		if got, want := address.String(), fmt.Sprintf("10.7.0.%d", i+2); got != want {
			t.Fatalf("address %s, want %s", got, want)
		}
		ns := testkit.Must(n.Add(address))
		pods = append(pods, ns)
		server := ns.Command("python3", "-c", `import socket,sys
s = socket.create_server(("", 80))
print("ready", flush=True)
while True:
    c, _ = s.accept()
    c.sendall(sys.argv[1].encode()); c.close()`, address.String())
		out := testkit.Must(server.StdoutPipe())
		testkit.NoError(t, server.Start())
		t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
		if line := testkit.Must(bufio.NewReader(out).ReadString('\n')); line != "ready\n" {
			t.Fatalf("the server says %q", line)
		}
		conn := testkit.Must(net.DialTimeout("tcp", address.String()+":80", 10*time.Second))
		if got := testkit.Must(io.ReadAll(conn)); string(got) != address.String() {
			t.Errorf("%s answers at %v", got, address)
		}
		testkit.NoError(t, conn.Close())
	}
	out, err := pods[0].Command("python3", "-c", `import socket
for a in "10.7.0.2", "10.7.0.3":
    print(socket.create_connection((a, 80), 10).recv(99).decode())`).CombinedOutput()
	testkit.NoError(t, err)
	if got := strings.Join(strings.Fields(string(out)), " "); got != "10.7.0.2 10.7.0.3" {
		t.Errorf("from the first namespace: %s", got)
	}
	service := netip.MustParseAddr("10.96.0.1")
	testkit.NoError(t, n.AddService(service))
	l := testkit.Must(net.Listen("tcp", netip.AddrPortFrom(service, 80).String()))
	dial := []string{"-c", `import socket; socket.create_connection(("10.96.0.1", 80), 10)`}
	testkit.NoError(t, pods[1].Command("python3", dial...).Run())
	testkit.NoError(t, l.Close())
	testkit.NoError(t, n.RemoveService(service))
	if _, err := net.Listen("tcp", netip.AddrPortFrom(service, 80).String()); err == nil {
		t.Error("the address of a Service that was removed is still this host's")
	}
	taken := testkit.Must(n.Address())
	testkit.NoError(t, runIP("ip link add v0a070004 type bridge")) // the name of the link of .4
	if _, err := n.Add(taken); err == nil {
		t.Error("a namespace was added whose link there was already")
	}
	if all := testkit.Must(os.ReadDir("/run/netns")); len(all) != len(pods) {
		t.Errorf("the namespace that could not be added is left: %v", all)
	}
	for range 2 { // .5 and .6; .7 is the broadcast address
		testkit.Must(n.Address())
	}
	if a, err := n.Address(); err == nil {
		t.Errorf("a network of 8 addresses has one more: %v", a)
	}
}

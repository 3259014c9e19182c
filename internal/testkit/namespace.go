package testkit

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// Namespace is a network namespace with its own loopback.
type Namespace struct {
	// Links lead to it, each by its own address.
	Links []*Link

	t    testing.TB
	name string
}

// Link is a pair of virtual Ethernet devices, one on each side.
type Link struct {
	// Address is the IP address at which this link reaches servers of the namespace that listen on all addresses.
	Address string

	namespace *Namespace
	device    string // in the namespace
}

// NewNamespace returns a namespace with links, which are up. The end of the test removes it.
func NewNamespace(t testing.TB, links int) *Namespace {
	t.Helper()
	id := rand.Uint32() // names of devices have at most 15 bytes
	n := &Namespace{t: t, name: fmt.Sprintf("cascade-%08x", id)}
	if out, err := runIP("netns", "add", n.name); err != nil {
		Skip(t, Unavailable{What: "no network namespace can be made: " + strings.TrimSpace(out+" "+err.Error()), Remedy: "run the test as root, on Linux with iproute2"})
	}
	t.Cleanup(func() { n.must("netns", "del", n.name) }) // and with it the links
	n.must("-n", n.name, "link", "set", "lo", "up")
	for i := range links {
		outside, inside := fmt.Sprintf("cn%08x%do", id, i), fmt.Sprintf("cn%08x%di", id, i)
		here, there := addressesOf(id, i)
		n.must("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", n.name)
		n.must("address", "add", here.String()+"/30", "dev", outside)
		n.must("-n", n.name, "address", "add", there.String()+"/30", "dev", inside)
		n.must("link", "set", outside, "up")
		n.Links = append(n.Links, &Link{Address: there.String(), namespace: n, device: inside})
		n.Links[i].Up()
	}
	return n
}

// addressesOf returns the two addresses of a link, which are a network of their own: one of the 32,768 networks of four
// addresses in 198.18.0.0/15, which is for tests of network devices (RFC 2544). A namespace has consecutive ones from a
// place that its id chooses, so that those of tests that run at once rarely meet.
func addressesOf(id uint32, link int) (here, there netip.Addr) {
	network := (id + uint32(link)) % (1 << 15)
	first := binary.BigEndian.AppendUint32(nil, 198<<24|18<<16|network<<2)
	here = netip.AddrFrom4([4]byte(first)).Next()
	return here, here.Next()
}

// Command returns the command line that runs another one in the namespace, as the same process.
func (n *Namespace) Command(args ...string) []string {
	return append([]string{"ip", "netns", "exec", n.name}, args...)
}

// Down takes the link down.
func (l *Link) Down() { l.set("down") }

// Up takes the link up again.
func (l *Link) Up() { l.set("up") }

// set changes the far end of the link: the near one loses its carrier, and keeps its address and its route.
func (l *Link) set(state string) {
	l.namespace.t.Helper()
	l.namespace.must("-n", l.namespace.name, "link", "set", l.device, state)
}

func (n *Namespace) must(args ...string) {
	n.t.Helper()
	if out, err := runIP(args...); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// runIP runs the command ip.
func runIP(args ...string) (string, error) {
	out, err := exec.Command("ip", args...).CombinedOutput()
	return string(out), err
}

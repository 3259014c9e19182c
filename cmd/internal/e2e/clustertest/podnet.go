package clustertest

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Isolate is harness.RunIsolated for a test that calls NewNetwork: it also skips the test where no bridge or namespace of
// a Pod can be made.
func Isolate(t *testing.T, env ...string) bool {
	t.Helper()
	if !harness.RunIsolated(t, env...) {
		return false
	}
	// ip keeps the names of namespaces in /run, which a user namespace may not write to.
	if err := runIP("mount -t tmpfs tmpfs /run && ip link add probe type bridge && ip link del probe && ip netns add probe && nsenter --net=/run/netns/probe true && ip netns del probe"); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: fmt.Sprintf("a network namespace for each Pod: %v", err),
			Remedy: "install iproute2 and util-linux, and allow user namespaces (sysctl user.max_user_namespaces)"})
	}
	return true
}

// Network is a bridge with the first address of a prefix. Its methods may be called from any goroutine.
type Network struct {
	prefix netip.Prefix

	mu   sync.Mutex
	last netip.Addr // guarded by mu
}

// NewNetwork makes a bridge in the network namespace of this process. It must be called once.
func NewNetwork(prefix netip.Prefix) (*Network, error) {
	n := &Network{prefix: prefix, last: prefix.Masked().Addr().Next()}
	return n, runIP("ip link add pods type bridge && ip addr add %s dev pods && ip link set pods up", netip.PrefixFrom(n.last, prefix.Bits()))
}

// Host returns the address of this process on the bridge.
func (n *Network) Host() netip.Addr { return n.prefix.Masked().Addr().Next() }

// Address returns an address of the network that no call has returned before.
func (n *Network) Address() (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = n.last.Next()
	if !n.prefix.Contains(n.last.Next()) { // the last address is for broadcasts
		return netip.Addr{}, fmt.Errorf("network: %v has no address left", n.prefix)
	}
	return n.last, nil
}

// Namespace is the network namespace of a Pod.
type Namespace struct{ name string }

// Add makes a namespace with an address, which Remove removes.
func (n *Network) Add(address netip.Addr) (*Namespace, error) {
	id := strings.ReplaceAll(address.String(), ".", "-")
	ns := &Namespace{"pod-" + id}
	veth := fmt.Sprintf("v%x", address.As4())
	if err := runIP("ip netns add %s", ns.name); err != nil {
		return nil, err
	}
	err := runIP("ip link add %[2]s type veth peer name eth0 netns %[1]s && ip link set %[2]s master pods up && "+
		"nsenter --net=/run/netns/%[1]s sh -c 'ip link set lo up && ip addr add %[3]s dev eth0 && ip link set eth0 up && ip route add default via %[4]s'",
		ns.name, veth, netip.PrefixFrom(address, n.prefix.Bits()), n.Host())
	if err != nil {
		_ = ns.Remove() // what is left of it says less than err
		return nil, err
	}
	return ns, nil
}

// AddService gives this host the address of a Service, until RemoveService.
func (n *Network) AddService(address netip.Addr) error {
	return runIP("ip addr add %s/32 dev pods", address)
}

// RemoveService takes the address away again.
func (n *Network) RemoveService(address netip.Addr) error {
	return runIP("ip addr del %s/32 dev pods", address)
}

// Enter returns the command that runs the one that follows it in the namespace.
func (n *Namespace) Enter() []string {
	return []string{"nsenter", "--net=" + filepath.Join("/run/netns", n.name), "--"}
}

// Command returns a command that runs in the namespace.
func (n *Namespace) Command(name string, args ...string) *exec.Cmd {
	words := append(n.Enter(), name)
	return exec.Command(words[0], append(words[1:], args...)...)
}

// Remove removes the namespace as soon as no process is in it.
func (n *Namespace) Remove() error { return runIP("ip netns del %s", n.name) }

// runIP runs a line of shell with arguments that have no special characters.
func runIP(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

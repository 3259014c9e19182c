package playedcluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// The network: a bridge, which is the node's own interface, and an address on it for each Pod. Addresses of Services are on
// the bridge, too.
const (
	bridge  = "pods"
	gateway = "10.244.0.1"
)

// podAddress returns the address of the n-th Pod, from 1.
func podAddress(n int) string { return fmt.Sprintf("10.244.%d.%d", 1+n/250, 1+n%250) }

// network changes the network of this process's namespace.
type network struct{ mu sync.Mutex }

// ip runs commands of ip(8) in a network namespace; "" is this process's.
func (n *network) ip(namespace string, commands ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	cmd := exec.Command("ip", "-batch", "-")
	if namespace != "" {
		cmd.Args = []string{"ip", "-netns", namespace, "-batch", "-"}
	}
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, out)
	}
	return nil
}

// setUp makes the node: a bridge, and copies of /run and /etc in which Pods find mount points and names.
func (n *network) setUp() error {
	for _, args := range [][]string{
		{"mount", "-t", "tmpfs", "tmpfs", "/run"}, {"cp", "-a", "/etc", "/run/etc"}, {"mount", "--bind", "/run/etc", "/etc"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	if err := os.WriteFile("/etc/resolv.conf", nil, 0o644); err != nil { // no name server: names are in /etc/hosts
		return err
	}
	return n.ip("", "link add "+bridge+" type bridge", "address add "+gateway+"/16 dev "+bridge, "link set "+bridge+" up")
}

// addPod makes a network namespace with an address.
func (n *network) addPod(name, address string) error {
	if err := n.ip("", "netns add "+name, "link add v"+name+" type veth peer name eth0 netns "+name, "link set v"+name+" master "+bridge+" up"); err != nil {
		return err
	}
	return n.ip(name, "address add "+address+"/16 dev eth0", "link set eth0 up", "link set lo up", "route add default via "+gateway)
}

// removePod removes what addPod has made.
func (n *network) removePod(name string) error { return n.ip("", "netns delete "+name) }

// addService makes an address of a Service this node's.
func (n *network) addService(address string) error {
	return n.ip("", "address add "+address+"/32 dev "+bridge)
}

// removeService removes what addService has made.
func (n *network) removeService(address string) error {
	return n.ip("", "address delete "+address+"/32 dev "+bridge)
}

package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// The tables of GIDs of the fake's ports.
const (
	asBooted = iota
	afterFlap
	onlyIPv6
	onlyV1
)

// pullGIDIndex pulls, and returns the index of the GID that the receiver used.
func pullGIDIndex(t *testing.T, l *transporttest.Link) (index int) {
	t.Helper()
	p := l.Open().(*puller)
	l.RequirePull(p, l.Plan(8, 1))
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	return int(p.state.gids[0].Index)
}

// ends returns the transports of both ends.
func ends(p transporttest.Pair) [2]*servedTransport {
	return [2]*servedTransport{p.Source.Transport.(*servedTransport), p.Target.Transport.(*servedTransport)}
}

// TestAddressChanges checks that each pull reads the addresses again: a link comes back
// with its addresses at other indices, and later with IPv6 only, while the ends run.
func TestAddressChanges(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	l := start(t, layout(8, 512), layout(8, 512))
	for _, x := range []struct{ table, event, index int }{{asBooted, 0, 2}, {afterFlap, 0, 3}, {onlyIPv6, 0, 2}, {onlyV1, 0, 0}, {asBooted, 18, 2}} {
		c.Set("fake_gids", x.table)
		if x.event != 0 { // without an event the addresses are not read again
			for _, e := range ends(l.Pair) {
				c.Set("fake_event", x.event)
				testkit.WaitFor(t, "the NIC to forget its addresses", func() bool { return !known(e.nic) })
			}
		}
		if got := pullGIDIndex(t, l); got != x.index {
			t.Errorf("table %d: the receiver used entry %d, want %d", x.table, got, x.index)
		}
	}
}

func known(n *nic) bool {
	n.gidMu.Lock()
	defer n.gidMu.Unlock()
	return n.gids != nil
}

func deviceName(device string) func() string { return func() string { return device } }

// TestDeviceChanges checks that a configured device which changes is opened while the
// ends run, and that an open pull ends on the previous one.
func TestDeviceChanges(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	c.Set("fake_devices", 2)
	defer c.Set("fake_devices", 1)
	var name atomic.Value
	name.Store("")
	p := newPair(t, layout(8, 512), layout(8, 512))
	for _, e := range ends(p) {
		e.config.Device = func() string { return name.Load().(string) }
	}
	l := transporttest.Start(t, p)
	puller := l.Open()
	name.Store("fake1")
	for _, e := range ends(p) {
		testkit.WaitFor(t, "the device to change", func() bool { d, _ := e.Device(); return d == "fake1" })
	}
	l.RequirePull(puller, l.Plan(8, 1)) // on the previous device
	pullGIDIndex(t, l)
	if n := c.Live("contexts"); n != 4 {
		t.Errorf("%d devices are open, want two per end", n)
	}
}

// TestTrafficMarks checks that packets are marked as configured.
func TestTrafficMarks(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	p := newPair(t, layout(8, 512), layout(8, 512))
	for _, e := range ends(p) {
		e.config.Device, e.config.GID, e.config.TrafficClass, e.config.ServiceLevel = deviceName("fake0"), netip.MustParseAddr("fe80::1"), 106, 3
	}
	l := transporttest.Start(t, p)
	if index := pullGIDIndex(t, l); index != 1 || c.Query("fake_path", 2) != 1 {
		t.Errorf("the receiver used GID %d, and the last end GID %d", index, c.Query("fake_path", 2))
	}
	if class, level := c.Query("fake_path", 0), c.Query("fake_path", 1); class != 106 || level != 3 {
		t.Errorf("traffic class %d and service level %d", class, level)
	}
}

func gid(address string, index uint8, v2 bool) verbs.GID {
	return verbs.GID{Index: index, Address: netip.MustParseAddr(address).As16(), RoutedIP: v2}
}

// TestEndpointFor checks the address by which a source answers.
func TestEndpointFor(t *testing.T) {
	four, six, local, old := gid("10.0.0.1", 3, true), gid("fd00::1", 5, true), gid("fe80::1", 1, true), gid("10.0.0.1", 2, false)
	for _, x := range []struct {
		has  []verbs.GID
		asks verbs.GID
		want int // entry, or −1 for none
	}{
		{[]verbs.GID{four, six, local, old}, four, 3},
		{[]verbs.GID{four, six, local, old}, six, 5},
		{[]verbs.GID{four, local, old}, six, 1},
		{[]verbs.GID{four, six, local, old}, old, 2},
		{[]verbs.GID{six, local}, four, -1},
		{[]verbs.GID{four, six}, old, -1},
		{[]verbs.GID{old}, four, -1},
	} {
		at := portState{port: verbs.Port{Number: 1, Active: true, MTU: 3}, gids: x.has}
		d, pair := &verbs.Device{Name: "d"}, &verbs.QueuePair{Number: 7}
		theirs := portState{port: at.port, gids: []verbs.GID{x.asks}}.localEndpoint(d, pair)
		own, err := at.endpointFor(d, pair, theirs)
		if got := int(own.index); err == nil && got != x.want || err != nil && (x.want >= 0 || !strings.Contains(err.Error(), "no address of that kind")) {
			t.Errorf("%v connects to %v: entry %d, %v", x.asks, x.has, got, err)
		}
		if err != nil {
			continue
		}
		n := &nic{device: d}
		path, err := own.pathTo(n, at, theirs)
		if err != nil || path.Global != 1 || int(path.GIDIndex) != x.want {
			t.Errorf("%v connects to %v: %+v, %v", x.asks, x.has, path, err)
		}
	}
	d, pair := &verbs.Device{Name: "d"}, &verbs.QueuePair{Number: 7}
	for _, routed := range []bool{false, true} { // InfiniBand names an address where the port demands it
		at := portState{port: verbs.Port{InfiniBand: true, LID: 4, MTU: 3, Routed: routed}, gids: []verbs.GID{local}}
		e := at.localEndpoint(d, pair)
		if path, err := e.pathTo(&nic{device: d}, at, e); err != nil || (path.Global == 1) != routed || path.LID != 4 {
			t.Errorf("InfiniBand: %+v, %v", path, err)
		}
	}
	here, there := portState{gids: []verbs.GID{four}}.localEndpoint(d, pair), portState{gids: []verbs.GID{old}}.localEndpoint(d, pair)
	if _, err := here.pathTo(&nic{device: d}, portState{}, there); err == nil || !strings.Contains(err.Error(), "RoCE v2") {
		t.Errorf("RoCE v2 connects to v1: %v", err)
	}
}

// TestDeviceFailsSilently checks that a device failure which ends nothing in flight ends
// all waits for the device.
func TestDeviceFailsSilently(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	l := start(t, layout(8, 512), layout(8, 512))
	puller, plan := l.Open(), l.Plan(8, 1)
	c.Pause()
	c.Fail("ibv_modify_qp", 1, 5)
	posted := c.Calls("ibv_post_send")
	ended := make(chan error, 1)
	go func() {
		_, err := puller.Pull(t.Context(), plan)
		ended <- err
	}()
	testkit.WaitFor(t, "the READs to be posted", func() bool { return c.Calls("ibv_post_send") > posted })
	c.Set("fake_event", 8)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "local catastrophic error") && !strings.Contains(err.Error(), "the source has ended the grant") {
			t.Errorf("the pull ended with %v", err)
		}
	case <-time.After(patience / 2):
		t.Error("a pull still waits for a failed device")
	}
	c.Clear()
}

// TestNICConfig checks that invalid configurations are rejected.
func TestNICConfig(t *testing.T) {
	good := Config{Library: &verbs.Library{}, Address: func() string { return "" }, Pool: transporttest.Pool{}}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Port = 1 }, func(c *Config) { c.GID = netip.MustParseAddr("10.0.0.1") },
		func(c *Config) { c.Device, c.Port = deviceName("d"), 256 }, func(c *Config) { c.ServiceLevel = 16 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	fails := newControl(t)
	s := newTransport(t, transporttest.HeapMemory(layout(8, 512)))
	fails.Fail("ibv_reg_mr", 1, int(syscall.ENOMEM))
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
		t.Errorf("memory that cannot be locked: %v", err)
	}
	s.config.Device, s.config.GID = deviceName("fake0"), netip.MustParseAddr("10.9.9.9")
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "10.9.9.9") {
		t.Errorf("an address that the port does not have: %v", err)
	}
	s.config.GID, s.config.Port = netip.Addr{}, 2
	if err := s.Probe(t.Context()); err == nil || errors.Is(err, lease.ErrClosed) {
		t.Errorf("a port that does not exist: %v", err)
	}
}

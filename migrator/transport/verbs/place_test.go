package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// The tables of GIDs that the fake's ports have.
const (
	asBooted = iota
	afterFlap
	onlyIPv6
	onlyV1
)

// pulledFrom opens a move between two ends, pulls, and returns
// the index of the GID by which the receiver asks.
func pulledFrom(t *testing.T, p transporttest.Pair, move string) (index int) {
	t.Helper()
	puller := opened(t, p, move).(*puller)
	if _, err := puller.Pull(t.Context(), plan(p.Source.Memory, p.Target.Memory, 8, rng(1))); err != nil {
		t.Error(err)
	}
	if err := puller.Close(); err != nil {
		t.Error(err)
	}
	return int(puller.state.gids[0].Index)
}

// TestAddressMoves has a link come back with its addresses elsewhere in their table,
// and become those of IPv6 alone, under ends that run: each move asks.
func TestAddressMoves(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	p := transporttest.Pair{Source: side(t, layout(8, 512)), Target: side(t, layout(8, 512))}
	defer runs(t, p.Source, p.Target)()
	for i, x := range []struct{ table, event, index int }{{asBooted, 0, 2}, {afterFlap, 0, 3}, {onlyIPv6, 0, 2}, {onlyV1, 0, 0}, {asBooted, 18, 2}} {
		c.Set("fake_gids", x.table)
		if x.event != 0 { // without one of the better addresses nobody looks for one
			for _, e := range []transporttest.End{p.Source, p.Target} {
				n := e.Transport.(*served).nic
				c.Set("fake_event", x.event)
				for limit := time.Now().Add(patience); known(n) && time.Now().Before(limit); time.Sleep(time.Millisecond) {
				}
			}
		}
		if got := pulledFrom(t, p, string(rune('a'+i))+"/1"); got != x.index {
			t.Errorf("table %d: asked by entry %d, want %d", x.table, got, x.index)
		}
	}
}

func known(n *nic) bool {
	n.gidMu.Lock()
	defer n.gidMu.Unlock()
	return n.gids != nil
}

func named(device string) func() string { return func() string { return device } }

// TestDeviceChanges has a nearer device be found while ends run, and a move that is
// open on the one before.
func TestDeviceChanges(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	c.Set("fake_devices", 2)
	defer c.Set("fake_devices", 1)
	var name atomic.Value
	name.Store("")
	p := transporttest.Pair{Source: side(t, layout(8, 512)), Target: side(t, layout(8, 512))}
	for _, e := range []transporttest.End{p.Source, p.Target} {
		e.Transport.(*served).config.Device = func() string { return name.Load().(string) }
	}
	defer runs(t, p.Source, p.Target)()
	puller := opened(t, p, "a/1")
	name.Store("fake1")
	for _, e := range []transporttest.End{p.Source, p.Target} {
		s := e.Transport.(*served)
		for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if d, _ := s.Device(); d == "fake1" {
				break
			}
			if time.Now().After(limit) {
				t.Fatal("the device stays")
			}
		}
	}
	if _, err := puller.Pull(t.Context(), plan(p.Source.Memory, p.Target.Memory, 8, rng(1))); err != nil {
		t.Errorf("on the device before: %v", err)
	}
	pulledFrom(t, p, "b/1")
	if n := c.Live("contexts"); n != 4 {
		t.Errorf("%d devices are open, want each end's two", n)
	}
	if err := puller.Close(); err != nil {
		t.Error(err)
	}
}

// TestMarks has packets marked as configured.
func TestMarks(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	p := transporttest.Pair{Source: side(t, layout(8, 512)), Target: side(t, layout(8, 512))}
	for _, e := range []transporttest.End{p.Source, p.Target} {
		s := e.Transport.(*served)
		s.config.Device, s.config.GID, s.config.TrafficClass, s.config.ServiceLevel = named("fake0"), netip.MustParseAddr("fe80::1"), 106, 3
	}
	defer runs(t, p.Source, p.Target)()
	if index := pulledFrom(t, p, "a/1"); index != 1 || c.Query("fake_path", 2) != 1 {
		t.Errorf("the address of entry %d, and of %d at the last end", index, c.Query("fake_path", 2))
	}
	if class, level := c.Query("fake_path", 0), c.Query("fake_path", 1); class != 106 || level != 3 {
		t.Errorf("traffic class %d and service level %d", class, level)
	}
}

func gid(address string, index uint8, v2 bool) verbs.GID {
	return verbs.GID{Index: index, Address: netip.MustParseAddr(address).As16(), RoutedIP: v2}
}

// TestAnswering has a source choose the address by which it answers.
func TestAnswering(t *testing.T) {
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
			t.Errorf("%v asks %v: entry %d, %v", x.asks, x.has, got, err)
		}
		if err != nil {
			continue
		}
		n := &nic{device: d}
		path, err := own.pathTo(n, at, theirs)
		if err != nil || path.Global != 1 || int(path.GIDIndex) != x.want {
			t.Errorf("%v asks %v: %+v, %v", x.asks, x.has, path, err)
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
		t.Errorf("RoCE v2 asks v1: %v", err)
	}
}

// TestDeviceFailsSilently has a device fail that ends nothing of what is under way: who
// waits for it does so no longer.
func TestDeviceFailsSilently(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	p := transporttest.Pair{Source: side(t, layout(8, 512)), Target: side(t, layout(8, 512))}
	defer runs(t, p.Source, p.Target)()
	puller := opened(t, p, "a/1")
	c.Pause()
	c.Fail("ibv_modify_qp", 1, 5)
	posted := c.Calls("ibv_post_send")
	ended := make(chan error, 1)
	go func() {
		_, err := puller.Pull(t.Context(), plan(p.Source.Memory, p.Target.Memory, 8, rng(1)))
		ended <- err
	}()
	for limit := time.Now().Add(patience); c.Calls("ibv_post_send") == posted && time.Now().Before(limit); time.Sleep(time.Millisecond) {
	}
	start := time.Now()
	c.Set("fake_event", 8)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "local catastrophic error") && !strings.Contains(err.Error(), "the source has ended the grant") {
			t.Errorf("the pull ends with %v", err)
		}
		t.Logf("after %v: %v", time.Since(start), err)
	case <-time.After(patience / 2):
		t.Error("a pull waits for a device that has failed")
	}
	c.Clear()
	if err := puller.Close(); err != nil {
		t.Error(err)
	}
}

// TestConfigOfNIC refuses what cannot be meant.
func TestConfigOfNIC(t *testing.T) {
	good := Config{Library: &verbs.Library{}, Address: func() string { return "" }, Pool: transporttest.Pool{}}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Port = 1 }, func(c *Config) { c.GID = netip.MustParseAddr("10.0.0.1") },
		func(c *Config) { c.Device, c.Port = named("d"), 256 }, func(c *Config) { c.ServiceLevel = 16 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	fails := control(t)
	s := over(t, transporttest.HeapMemory(layout(8, 512)))
	fails.Fail("ibv_reg_mr", 1, int(syscall.ENOMEM))
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
		t.Errorf("memory that cannot be locked: %v", err)
	}
	s.config.Device, s.config.GID = named("fake0"), netip.MustParseAddr("10.9.9.9")
	if err := s.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "10.9.9.9") {
		t.Errorf("an address that the port does not have: %v", err)
	}
	s.config.GID, s.config.Port = netip.Addr{}, 2
	if err := s.Probe(t.Context()); err == nil || errors.Is(err, pull.ErrClosed) {
		t.Errorf("a port that is not there: %v", err)
	}
}

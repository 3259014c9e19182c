package lease

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Bounds of the connections of one source. Anyone who reaches its port may have one that has
// presented no ticket yet, so the oldest of these make room for new ones: a receiver presents its
// ticket within milliseconds, and is not kept waiting by those that never do.
const (
	// MaxWaiting bounds the connections without a ticket, MaxWaitingOfHost those of one host.
	MaxWaiting       = 128
	MaxWaitingOfHost = 32
	// MaxSessions bounds the open pulls, MaxSessionsOfHost those of one host.
	MaxSessions       = 256
	MaxSessionsOfHost = 128
)

// Admission counts the connections of one source, before and after their tickets. The zero
// Admission is ready to use. It is safe for concurrent use.
type Admission struct {
	mu      sync.Mutex
	waiting []*Connection // oldest first
	pulls   []*Connection
}

// Connection is one connection that an Admission counts. It must be left.
type Connection struct {
	admission *Admission
	host      string
	drop      func()
}

// Enter counts a connection that has presented no ticket yet. drop ends it, later or at once, if
// others need its place: it is the oldest of the host that has the most.
func (a *Admission) Enter(remote net.Addr, drop func()) *Connection {
	c := &Connection{admission: a, host: hostOf(remote), drop: drop}
	a.mu.Lock()
	a.waiting = append(a.waiting, c)
	var dropped *Connection
	if len(a.waiting) > MaxWaiting || countHost(a.waiting, c.host) > MaxWaitingOfHost {
		dropped = oldestOfBusiest(a.waiting)
		a.waiting = without(a.waiting, dropped)
	}
	a.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
	return c
}

// Admit counts a connection whose ticket was redeemed as a pull from now on. It returns why there
// must be no further pull, or that the connection was dropped.
func (c *Connection) Admit() error {
	a := c.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !slices.Contains(a.waiting, c):
		return fmt.Errorf("dropped for newer connections of host %s", c.host)
	case len(a.pulls) >= MaxSessions:
		return fmt.Errorf("%d pulls are open already", MaxSessions)
	case countHost(a.pulls, c.host) >= MaxSessionsOfHost:
		return fmt.Errorf("%d pulls of host %s are open already", MaxSessionsOfHost, c.host)
	}
	a.waiting, a.pulls = without(a.waiting, c), append(a.pulls, c)
	return nil
}

// Leave ends the count of a connection.
func (c *Connection) Leave() {
	a := c.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting, a.pulls = without(a.waiting, c), without(a.pulls, c)
}

// oldestOfBusiest returns the oldest connection of the host that has the most; of several such
// hosts, of the one whose connection is the oldest.
func oldestOfBusiest(all []*Connection) *Connection {
	count := make(map[string]int)
	for _, c := range all {
		count[c.host]++
	}
	busiest := all[0]
	for _, c := range all {
		if count[c.host] > count[busiest.host] {
			busiest = c
		}
	}
	return busiest
}

func countHost(all []*Connection, host string) (n int) {
	for _, c := range all {
		if c.host == host {
			n++
		}
	}
	return n
}

func without(all []*Connection, c *Connection) []*Connection {
	return slices.DeleteFunc(all, func(other *Connection) bool { return other == c })
}

// hostOf returns the host of an address. An IPv6 host has a whole /64, and all processes behind a
// Unix socket are one.
func hostOf(remote net.Addr) string {
	if remote == nil {
		return ""
	}
	address, err := netip.ParseAddrPort(remote.String())
	if err != nil {
		return remote.Network()
	}
	ip := address.Addr().Unmap().WithZone("")
	if ip.Is6() {
		prefix, _ := ip.Prefix(64) // of an IPv6 address: no error
		return prefix.String()
	}
	return ip.String()
}

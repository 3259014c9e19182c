package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/policies"
)

// Resolver looks up the addresses of a host; *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	// lookupPeriod is the time between two look-ups of the replicas' names.
	lookupPeriod = 5 * time.Second
	// lookupTimeout bounds one look-up of all names.
	lookupTimeout = 2 * time.Second
	// maxLookups is how many names are looked up at once.
	maxLookups = 32
)

// replicaNames puts IP addresses in place of the host names in the replicas' addresses, because
// EDS carries IP addresses only. It looks the names up again every lookupPeriod.
//
// A name stands for one address: the last one while the answers contain it, else the lowest. A
// failed look-up changes nothing. A list with a name that has never been found is applied when it
// is; until then the list before it stays in force.
type replicaNames struct {
	resolver Resolver
	apply    func([]policies.Replica) error // applies a list without names
	log      *slog.Logger

	looking sync.Mutex // held during look-ups and while apply runs

	mu      sync.Mutex
	list    []policies.Replica    // as configured
	found   map[string]netip.Addr // by host
	failed  map[string]error      // of the last look-up, by host
	pending bool                  // the list, or a new address in it, has not been applied
	refused error                 // why apply refused the last new addresses
}

func newReplicaNames(c Config) *replicaNames {
	return &replicaNames{resolver: c.Resolver, log: c.Logger, found: make(map[string]netip.Addr)}
}

// start returns the first list with the addresses of its names. An error names a replica whose name is not found.
func (n *replicaNames) start(list []policies.Replica) ([]policies.Replica, error) {
	n.list = list
	n.lookUp(context.Background())
	if faults := n.faults(); len(faults) > 0 {
		return nil, fmt.Errorf("replica %q: %s", faults[0].Object, faults[0].Text)
	}
	resolved, _ := n.resolve()
	return resolved, nil
}

// set replaces the list. If apply refuses it, the list before it stays in force, with the addresses that have been found
// meanwhile.
func (n *replicaNames) set(list []policies.Replica) error {
	n.looking.Lock()
	defer n.looking.Unlock()
	n.mu.Lock()
	before := n.list
	n.list, n.pending = list, true
	n.mu.Unlock()
	n.lookUp(context.Background())
	err := n.applyPending()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.list = before // still pending: its names may have new addresses
	} else {
		n.refused = nil
	}
	return err
}

// run looks the names up every lookupPeriod until ctx ends.
func (n *replicaNames) run(ctx context.Context) error {
	tick := time.NewTicker(lookupPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n.looking.Lock()
		n.lookUp(ctx)
		err := n.applyPending()
		n.looking.Unlock()
		n.mu.Lock()
		if err != nil && n.refused == nil {
			n.log.Error("new addresses of replicas refused, keeping the last valid ones", "error", err)
		}
		n.refused = err
		n.mu.Unlock()
	}
}

// lookUp looks up the names in the list.
func (n *replicaNames) lookUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	n.mu.Lock()
	hosts := make(map[string]bool)
	for _, r := range n.list {
		hosts[nameOf(r.Address)] = true
	}
	n.mu.Unlock()
	delete(hosts, "")
	failed := make(map[string]error)
	var g errgroup.Group
	g.SetLimit(maxLookups)
	for host := range hosts {
		g.Go(func() error {
			all, err := n.resolver.LookupNetIP(ctx, "ip", host)
			if err == nil && len(all) == 0 {
				err = errors.New("it has no address")
			}
			for i, a := range all {
				all[i] = a.Unmap()
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			if err != nil {
				failed[host] = err
			} else if !slices.Contains(all, n.found[host]) {
				n.found[host], n.pending = slices.MinFunc(all, netip.Addr.Compare), true
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	n.mu.Lock()
	n.failed = failed
	n.mu.Unlock()
}

// resolve returns the list with the addresses of its names; false if one has never been found.
func (n *replicaNames) resolve() ([]policies.Replica, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Clone(n.list)
	for i, r := range list {
		if host := nameOf(r.Address); host != "" {
			at, ok := n.found[host]
			if !ok {
				return nil, false
			}
			_, port, _ := net.SplitHostPort(r.Address)
			list[i].Address = net.JoinHostPort(at.String(), port)
		}
	}
	return list, true
}

// applyPending applies what is pending, once all names have been found.
func (n *replicaNames) applyPending() error {
	n.mu.Lock()
	pending := n.pending
	n.mu.Unlock()
	list, complete := n.resolve()
	if !pending || !complete {
		return nil
	}
	err := n.apply(list)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = err != nil
	return err
}

// faults lists the replicas whose names the last look-up did not find, and why new addresses are refused.
func (n *replicaNames) faults() (out []Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.list {
		host := nameOf(r.Address)
		err := n.failed[host]
		if err == nil {
			continue
		}
		then := "the replicas of the fleet file take effect when it is found"
		if at, ok := n.found[host]; ok {
			then = "proxies keep " + at.String()
		}
		out = append(out, Fault{Kind: FaultReplica, Object: string(r.ID), Text: fmt.Sprintf("the name in its address %s is not found: %v; %s", r.Address, err, then)})
	}
	if n.refused != nil {
		out = append(out, Fault{Kind: FaultFile, Object: "refused", Text: "names of replicas have new addresses, which are refused: " + n.refused.Error()})
	}
	return out
}

// nameOf returns the host of an address if it is a name, else "".
func nameOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

// Package trader is a replica's part in the market for running requests: it decides what the
// replica offers, drives its side of all deals, and measures how fast its transfers are.
//
// A Trader combines a candidates.Selector, which chooses the requests to offer, and a
// bidask.Machine, which negotiates with the buyers. Scan takes the replica's load and its
// running requests; Step takes one event. Both return actions for the caller to carry out:
// messages to send and transfers to execute. A Trader reads no clock, does no I/O, and with
// the same seed and the same calls gives the same actions.
//
// In production migrator/market drives it. In virtual time the caller has a Trader and a
// loadview.View per replica, calls Scan every tenth of a second, Step with DeadlineReached at
// Next, delivers Send actions after the link's delay as MessageReceived, and answers the
// other actions as package bidask specifies.
//
// Invariant: a request is for sale at most once, only while it runs here, and at most
// MaxOffers are for sale at a time.
package trader

import (
	"cmp"
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/candidates"
	"github.com/cascadeinfer/cascade/policies/loadview"
)

// DefaultMaxOffers is the default of Config.MaxOffers.
const DefaultMaxOffers = 16

// departedRetention is how long a request that has left is ignored among the residents: the
// front end may list it for another moment. Once it is off that list, it is forgotten at once.
const departedRetention = policies.Second

// Peers is what the replica knows of its peers; see loadview.View.
type Peers interface {
	// SetOwnLoad records this replica's load.
	SetOwnLoad(loadview.Load)
	// StageMean returns the mean of Load.Held over this replica's stage; false if unknown.
	StageMean(now policies.Micros) (policies.Tokens, bool)
	// Available reports whether a peer can be asked to take a request.
	Available(now policies.Micros, id policies.ReplicaID) bool
	// IsPrefill reports whether this is a prefill replica.
	IsPrefill() bool
	// RecordPrefillMove records whether a migration from a prefill replica to here succeeded.
	RecordPrefillMove(now policies.Micros, from policies.ReplicaID, moved bool)
}

var _ Peers = (*loadview.View)(nil)

// Config configures a Trader.
type Config struct {
	// Self is this replica, and Peers what it knows of the others. Required.
	Self  policies.ReplicaID
	Peers Peers
	// Machine configures the market's rules. New fills in Self.
	Machine bidask.Config
	// Detector, BucketEdges, Cooldown, SpillPercent and ExcessRatio are the fields of candidates.Config.
	Detector     policies.Detector
	BucketEdges  []policies.Tokens
	Cooldown     policies.Micros
	SpillPercent int
	ExcessRatio  int
	// KeepRequests makes the replica offer nothing: its requests end where they run. Its load
	// still places new requests, and it still buys what others offer.
	KeepRequests bool
	// MaxOffers bounds the number of requests for sale at a time, those that are being
	// transferred included. Set it above the limit of concurrent transfers: else no deal is made
	// while they run. 0 means DefaultMaxOffers.
	MaxOffers int
	// MigrationCost estimates the time to migrate so many tokens to a peer over the link
	// between the two; sellers prefer cheap peers. It must be a pure function. nil: all
	// peers cost the same.
	MigrationCost func(to policies.ReplicaID, length policies.Tokens) policies.Micros
	// Seed seeds the choice of the peers that are asked for bids.
	Seed uint64
}

// sale is a request for sale.
type sale struct {
	migration policies.Migration
	exporting bool
}

// Trader is one replica's part in the market. It is not safe for concurrent use.
type Trader struct {
	cfg        Config
	machine    *bidask.Machine
	selector   *candidates.Selector
	rng        *rand.Rand
	sales      map[string]*sale // by request
	exports    map[bidask.Deal]string
	imports    map[bidask.Deal]policies.Migration // running transfers to here
	departed   map[string]policies.Micros         // requests that left, and the time until which they do not count as residents
	throughput throughputMeter
	occupancy  policies.Occupancy    // as last measured
	residents  []candidates.Resident // scratch memory of Scan
	counts     Counts
}

// Counts counts since New.
type Counts struct {
	// Offered, MovedOut and FailedOut count, by cause, requests that were offered, that left,
	// and whose transfer failed. MovedIn and FailedIn count those that arrived and those that
	// did not.
	Offered, MovedOut, FailedOut [policies.Prefill + 1]uint64
	MovedIn, FailedIn            uint64
	// Sent counts messages by kind. Returned counts, by reason, offers that were not sold.
	Sent     [bidask.Drop + 1]uint64
	Returned [bidask.ReturnTooManyOffers + 1]uint64
}

// New returns a trader without sales. It bids after the first Scan. The error is a
// *policies.Violation that names the invalid field.
func New(c Config) (*Trader, error) {
	if c.Peers == nil || c.MaxOffers < 0 {
		return nil, &policies.Violation{Subject: "trader", Invariant: "Peers must be set, and MaxOffers must not be negative"}
	}
	c.MaxOffers, c.Machine.Self = cmp.Or(c.MaxOffers, DefaultMaxOffers), c.Self
	machine, err := bidask.New(c.Machine)
	if err != nil {
		return nil, err
	}
	selector, err := candidates.New(candidates.Config{Self: c.Self, Detector: c.Detector, BucketEdges: c.BucketEdges, Cooldown: c.Cooldown, SpillPercent: c.SpillPercent, ExcessRatio: c.ExcessRatio})
	if err != nil {
		return nil, err
	}
	return &Trader{
		cfg: c, machine: machine, selector: selector, rng: rand.New(rand.NewPCG(c.Seed, 0)),
		sales: make(map[string]*sale), exports: make(map[bidask.Deal]string), imports: make(map[bidask.Deal]policies.Migration),
		departed: make(map[string]policies.Micros),
	}, nil
}

// Step passes an event to the machine, appends the resulting actions to out and returns it.
func (t *Trader) Step(ev bidask.Event, out []bidask.Action) []bidask.Action {
	if ev.Kind == bidask.TransferDone || ev.Kind == bidask.TransferFailed {
		t.recordTransferEnd(ev)
	}
	first := len(out)
	out = t.machine.Step(ev, out)
	for _, a := range out[first:] {
		t.recordAction(ev.Now, a)
	}
	return out
}

// recordAction updates the sales, the transfers and the counts after an action of the machine.
func (t *Trader) recordAction(now policies.Micros, a bidask.Action) {
	switch a.Kind {
	case bidask.Send:
		t.counts.Sent[a.Message.Kind]++
	case bidask.Return:
		t.counts.Returned[a.Reason]++
		delete(t.sales, a.Migration.Request)
		delete(t.exports, a.Deal)
		t.selector.RecordReturn(now, a.Migration, a.Reason)
	case bidask.Export:
		if s := t.sales[a.Migration.Request]; s != nil {
			s.exporting = true
			t.exports[a.Deal] = a.Migration.Request
		}
	case bidask.Import:
		t.throughput.begin(now)
		t.imports[a.Deal] = a.Migration
	}
}

// recordTransferEnd records the end of a transfer. The machine decides what follows: it returns a
// sale after a failed transfer.
func (t *Trader) recordTransferEnd(ev bidask.Event) {
	moved := ev.Kind == bidask.TransferDone
	if bought, ok := t.imports[ev.Deal]; ok {
		delete(t.imports, ev.Deal)
		length := bought.Length
		if moved {
			t.counts.MovedIn++
		} else {
			t.counts.FailedIn++
			length = 0
		}
		t.throughput.end(ev.Now, length)
		// A request that had ended or was no longer for sale says nothing of the prefill replica.
		if bought.Cause == policies.Prefill && !ev.Over {
			t.cfg.Peers.RecordPrefillMove(ev.Now, ev.Deal.Seller, moved)
		}
		return
	}
	request, ok := t.exports[ev.Deal]
	if !ok {
		return
	}
	delete(t.exports, ev.Deal)
	cause := t.sales[request].migration.Cause
	if !moved {
		t.counts.FailedOut[cause]++
		return
	}
	t.counts.MovedOut[cause]++
	delete(t.sales, request)
	t.departed[request] = ev.Now + departedRetention
}

// Exporting returns what a deal transfers from here; false if no transfer of that deal runs.
func (t *Trader) Exporting(d bidask.Deal) (policies.Migration, bool) {
	request, ok := t.exports[d]
	if !ok {
		return policies.Migration{}, false
	}
	return t.sales[request].migration, true
}

// Next returns when Step must be called with DeadlineReached; false if no deadline is pending.
// It may change with every Step and Scan.
func (t *Trader) Next() (policies.Micros, bool) { return t.machine.Next() }

// Incoming returns the KV reserved for requests that were bought and have not arrived.
func (t *Trader) Incoming() policies.Tokens { return t.machine.Incoming() }

// Counts returns what was counted since New.
func (t *Trader) Counts() Counts { return t.counts }

// Deals returns the numbers of requests for sale and of running transfers from and to here.
func (t *Trader) Deals() (offers, exporting, importing int) {
	return len(t.sales), len(t.exports), len(t.imports)
}

// Throughput returns the measured rate of incoming transfers in tokens per second, 0 if unknown.
func (t *Trader) Throughput() policies.Tokens { return t.throughput.rate() }

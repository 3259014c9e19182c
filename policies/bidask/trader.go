package bidask

import (
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// maxOffers bounds the number of requests for sale at a time, those that are being transferred included. It is above
// the number of concurrent transfers: else no deal would be made while they run.
const maxOffers = 16

// departedRetention is how long a request that has left is ignored among the residents: the
// front end may list it for another moment. Once it is off that list, it is forgotten at once.
const departedRetention = policies.Second

// Peers is what the replica knows of its peers; see place.Peers.
type Peers interface {
	// SetOwnLoad records this replica's load.
	SetOwnLoad(place.PeerLoad)
	// StageMean returns the mean of Load.Held over this replica's stage; false if unknown.
	StageMean(now policies.Micros) (policies.Tokens, bool)
	// Available reports whether a peer can be asked to take a request.
	Available(now policies.Micros, id policies.ReplicaID) bool
	// FindMove returns the running request whose move saves most; see place.Peers.
	FindMove(policies.Micros, place.MoveQuery) (place.Move, bool)
	// IsPrefill reports whether this is a prefill replica.
	IsPrefill() bool
	// RecordPrefillMove records whether a migration from a prefill replica to here succeeded.
	RecordPrefillMove(now policies.Micros, from policies.ReplicaID, moved bool)
}

var _ Peers = (*place.Peers)(nil)

// TraderConfig configures a Trader.
type TraderConfig struct {
	// OfferRules say what the replica offers. Self and Peers, what it knows of the others, are required.
	OfferRules
	Peers Peers
	// Machine configures the market's rules. New fills in Self.
	Machine Rules
	// KeepRequests makes the replica offer nothing: its requests end where they run. Its load
	// still places new requests, and it still buys what others offer.
	KeepRequests bool
	// MigrationCost returns the present estimate of how long so many tokens take to a peer over the link between the
	// two; sellers prefer cheap peers. The estimate is called under locks: it takes none, and does no I/O. nil: all
	// peers cost the same.
	MigrationCost func() func(to policies.ReplicaID, length policies.Tokens) policies.Micros
	// Seed seeds the choice of the peers that are asked for bids.
	Seed uint64
}

// forSale is a request for sale.
type forSale struct {
	migration policies.Migration
	exporting bool
}

// Trader is a replica's part in the market for running requests: it decides what the
// replica offers, drives its side of all deals, and measures how fast its transfers are.
//
// It combines a selector, which chooses the requests to offer, and a
// Machine, which negotiates with the buyers. Scan takes the replica's load and its
// running requests; Step takes one event. Both return actions for the caller to carry out:
// messages to send and transfers to execute. A Trader reads no clock, does no I/O, and with
// the same seed and the same calls gives the same actions.
//
// In production migrator/market drives it. In virtual time the caller has a Trader and a
// place.Peers per replica, calls Scan every tenth of a second, Step with DeadlineReached at
// Next, delivers Send actions after the link's delay as MessageReceived, and answers the
// other actions as the package comment specifies.
//
// Invariant: a request is for sale at most once, only while it runs here, and at most
// maxOffers are for sale at a time.
//
// It is not safe for concurrent use.
type Trader struct {
	cfg        TraderConfig
	machine    *Machine
	selector   *selector
	rng        *rand.Rand
	sales      map[string]*forSale         // by request
	exports    map[Deal]policies.Migration // running transfers from here
	imports    map[Deal]policies.Migration // running transfers to here
	departed   map[string]policies.Micros  // requests that left, and the time until which they do not count as residents
	throughput throughputMeter
	occupancy  policies.Occupancy // as last measured
	residents  []candidate        // scratch memory of Scan
	priced     []place.Resident   // and of findMove
	movable    []int
	counts     Counts
}

// Counts counts since New.
type Counts struct {
	// Offered, MovedOut and FailedOut count, by cause, requests that were offered, that left,
	// and whose transfer failed. MovedIn and FailedIn count those that arrived and those that
	// did not. Requests that ended during their transfer count as neither.
	Offered, MovedOut, FailedOut [policies.Cheaper + 1]uint64
	MovedIn, FailedIn            uint64
	// Sent counts messages by kind. Returned counts, by reason, offers that were not sold.
	Sent     [Drop + 1]uint64
	Returned [ReturnWithdrawn + 1]uint64
}

// NewTrader returns a trader without sales. It bids after the first Scan. The error is a
// *policies.Violation that names the invalid field.
func NewTrader(c TraderConfig) (*Trader, error) {
	if c.Peers == nil {
		return nil, &policies.Violation{Subject: "trader", Invariant: "Peers must be set"}
	}
	c.Machine.Self = c.Self
	machine, err := NewMachine(c.Machine)
	if err != nil {
		return nil, err
	}
	selector, err := newSelector(c.OfferRules)
	if err != nil {
		return nil, err
	}
	return &Trader{
		cfg: c, machine: machine, selector: selector, rng: rand.New(rand.NewPCG(c.Seed, 0)),
		sales: make(map[string]*forSale), exports: make(map[Deal]policies.Migration), imports: make(map[Deal]policies.Migration),
		departed: make(map[string]policies.Micros),
	}, nil
}

// Step passes an event to the machine, appends the resulting actions to out and returns it.
func (t *Trader) Step(ev Event, out []Action) []Action {
	if ev.Kind == TransferDone || ev.Kind == TransferFailed {
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
func (t *Trader) recordAction(now policies.Micros, a Action) {
	switch a.Kind {
	case Send:
		t.counts.Sent[a.Message.Kind]++
	case Return:
		t.counts.Returned[a.Reason]++
		delete(t.sales, a.Migration.Request)
		t.selector.RecordReturn(now, a.Migration, a.Reason)
	case Export:
		t.sales[a.Migration.Request].exporting = true
		t.exports[a.Deal] = a.Migration
	case Import:
		t.throughput.begin(now)
		t.imports[a.Deal] = a.Migration
	}
}

// recordTransferEnd records the end of a transfer. The machine decides what follows: it returns the request after a
// failed transfer.
func (t *Trader) recordTransferEnd(ev Event) {
	moved := ev.Kind == TransferDone
	if bought, ok := t.imports[ev.Deal]; ok {
		delete(t.imports, ev.Deal)
		length := bought.Length
		switch {
		case moved:
			t.counts.MovedIn++
		case !ev.Over:
			t.counts.FailedIn++
		}
		if !moved {
			length = 0
		}
		t.throughput.end(ev.Now, length)
		// A request that had ended or was no longer for sale says nothing of the prefill replica.
		if bought.Cause == policies.Prefill && !ev.Over {
			t.cfg.Peers.RecordPrefillMove(ev.Now, ev.Deal.Seller, moved)
		}
		return
	}
	sold, ok := t.exports[ev.Deal]
	if !ok {
		return
	}
	delete(t.exports, ev.Deal)
	if !moved {
		if !ev.Over {
			t.counts.FailedOut[sold.Cause]++
		}
		return
	}
	t.counts.MovedOut[sold.Cause]++
	delete(t.sales, sold.Request)
	t.departed[sold.Request] = ev.Now + departedRetention
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

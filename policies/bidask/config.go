package bidask

import (
	"cmp"

	"github.com/cascadeinfer/cascade/policies"
)

// AskAll as Config.Sample means that every candidate is asked, as in the paper.
const AskAll = -1

// Rules configures a Machine. The paper's settings are Sample AskAll, Selector Paper{},
// three concurrent transfers each way and WaitForPromise.
type Rules struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// FirstDeal is the number of the first deal. It must be larger than any number that
	// an earlier machine of this replica used, for instance the start time in
	// microseconds.
	FirstDeal uint64
	// Quoter makes bids, Selector picks one. nil means Backlog{} and LeastLoad{}.
	Quoter   policies.Quoter
	Selector policies.Selector
	// Sample is how many candidates are asked. If all are asked, many sellers choose the
	// same buyer as soon as bids are stale when they arrive. 0 means 8; AskAll means all.
	Sample int
	// BalancePercent is the percentage of its KV capacity up to which a replica takes requests
	// that move for balance (Spill, Outlier). Above it, the copies would evict the prefixes that
	// its own requests use, and the replica would soon offer them again. 0 means 75; 100 is
	// whatever fits.
	BalancePercent int
	// MaxConcurrentSends and MaxConcurrentReceives bound the transfers that run at once
	// each way. One is too few: a stage migrates more than one request per iteration. 0
	// means 4.
	MaxConcurrentSends, MaxConcurrentReceives int
	// MaxSkips is how often a buyer accepts Busy before it sends Starving. 0 means 3.
	MaxSkips int
	// MaxWins bounds the wins that have not arrived. 0 means 64.
	MaxWins int
	// BidTimeout is how long a seller collects bids. AnswerTimeout is how long a replica
	// waits for another's answer, or holds a promised slot. Both must exceed a round
	// trip. 0 means 100 ms and 200 ms.
	BidTimeout, AnswerTimeout policies.Micros
	// RetryDelay is the time before a buyer pulls from a busy seller again. 0 means 5 ms.
	RetryDelay policies.Micros
	// PromiseTimeout is how long a buyer waits for a promised slot. 0 means 1 s.
	PromiseTimeout policies.Micros
	// WaitForPromise makes a buyer that was promised a slot start no other pull until it
	// gets the slot, as in the paper. By default it serves its other entries meanwhile:
	// one long transfer of the seller would delay them all.
	WaitForPromise bool
	// Lease is how long a reservation waits for its transfer to start. 0 means 10 s.
	Lease policies.Micros
	// TransferTimeout is how long a transfer may take before it is aborted. 0 means
	// 30 s.
	TransferTimeout policies.Micros
}

// complete fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Rules) complete() (Rules, error) {
	if c.Self == "" {
		return c, &policies.Violation{Subject: "bidask", Invariant: "Self must name the own replica"}
	}
	if c.Quoter == nil {
		c.Quoter = Backlog{}
	}
	if c.Selector == nil {
		c.Selector = LeastLoad{}
	}
	c.Sample = cmp.Or(c.Sample, 8)
	if c.Sample < AskAll {
		return c, &policies.Violation{Subject: "bidask", Invariant: "Sample must be positive, AskAll, or 0 for its default"}
	}
	for _, err := range [...]error{
		setDefault("MaxConcurrentSends", &c.MaxConcurrentSends, 4), setDefault("MaxConcurrentReceives", &c.MaxConcurrentReceives, 4),
		setDefault("BalancePercent", &c.BalancePercent, 75), setDefault("MaxSkips", &c.MaxSkips, 3), setDefault("MaxWins", &c.MaxWins, 64),
		setDefault("BidTimeout", &c.BidTimeout, 100*policies.Millisecond), setDefault("AnswerTimeout", &c.AnswerTimeout, 200*policies.Millisecond),
		setDefault("RetryDelay", &c.RetryDelay, 5*policies.Millisecond), setDefault("PromiseTimeout", &c.PromiseTimeout, policies.Second),
		setDefault("Lease", &c.Lease, 10*policies.Second), setDefault("TransferTimeout", &c.TransferTimeout, 30*policies.Second),
	} {
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// setDefault sets a field that is 0 to its default, and refuses a negative one.
func setDefault[T int | policies.Micros](name string, field *T, otherwise T) error {
	if *field == 0 {
		*field = otherwise
	}
	if *field < 0 {
		return &policies.Violation{Subject: "bidask", Invariant: name + " must be positive, or 0 for its default"}
	}
	return nil
}

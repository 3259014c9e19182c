package bidask

import (
	"github.com/cascadeinfer/cascade/policies"
)

// AskAll as Config.Sample asks every candidate, as the paper does.
const AskAll = -1

// Config sets a Machine up. The paper's settings are Sample AskAll, Selector
// Paper{}, and three slots each way.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// FirstDeal is the number of the first deal: larger than any that a machine of
	// this name has used before, for instance the start time in microseconds.
	FirstDeal uint64
	// Quoter makes bids, Selector picks one. nil means Backlog{} and LeastLoad{}.
	Quoter   policies.Quoter
	Selector policies.Selector
	// Sample is how many candidates are asked. Asking everybody herds as soon
	// as bids are stale when they arrive. 0 means 8; AskAll means all.
	Sample int
	// MaxConcurrentSends and MaxConcurrentReceives are how many transfers may run at once each
	// way. One is a throughput cliff: a stage hands over more than one request
	// per iteration. 0 means 4.
	MaxConcurrentSends, MaxConcurrentReceives int
	// MaxSkips is how often a buyer is skipped before it says so. 0 means 3.
	MaxSkips int
	// MaxOffers and Wins bound what is offered and what is won and not yet here.
	// 0 means 256 and 64.
	MaxOffers, MaxWins int
	// BidTimeout is how long a seller collects bids, AnswerTimeout how long one
	// replica waits for another's answer, or holds a promised slot. Both
	// exceed a round trip. 0 means 100 ms and 200 ms.
	BidTimeout, AnswerTimeout policies.Micros
	// RetryDelay is the pause before a busy seller is tried again. 0 means 5 ms.
	RetryDelay policies.Micros
	// PromiseTimeout is how long a promised slot is waited for. 0 means 1 s.
	PromiseTimeout policies.Micros
	// Lease is how long a reservation waits for its transfer to begin. 0 means
	// 10 s.
	Lease policies.Micros
	// TransferTimeout is how long a transfer may take before it is aborted. 0 means
	// 30 s.
	TransferTimeout policies.Micros
}

// complete fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Config) complete() (Config, error) {
	if c.Self == "" {
		return c, &policies.Violation{Subject: "bidask", Invariant: "Self must name the own replica"}
	}
	if c.Quoter == nil {
		c.Quoter = Backlog{}
	}
	if c.Selector == nil {
		c.Selector = LeastLoad{}
	}
	if c.Sample == 0 {
		c.Sample = 8
	}
	if c.Sample < AskAll {
		return c, &policies.Violation{Subject: "bidask", Invariant: "Sample must be positive, AskAll, or 0 for its default"}
	}
	for _, f := range [...]struct {
		name      string
		value     *int
		otherwise int
	}{
		{"SendSlots", &c.MaxConcurrentSends, 4}, {"ReceiveSlots", &c.MaxConcurrentReceives, 4}, {"Skips", &c.MaxSkips, 3},
		{"Offers", &c.MaxOffers, 256}, {"Wins", &c.MaxWins, 64},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "bidask", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	for _, f := range [...]struct {
		name      string
		value     *policies.Micros
		otherwise policies.Micros
	}{
		{"BidTimeout", &c.BidTimeout, 100 * policies.Millisecond}, {"AnswerTimeout", &c.AnswerTimeout, 200 * policies.Millisecond},
		{"Retry", &c.RetryDelay, 5 * policies.Millisecond}, {"Promise", &c.PromiseTimeout, policies.Second},
		{"Lease", &c.Lease, 10 * policies.Second}, {"Transfer", &c.TransferTimeout, 30 * policies.Second},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "bidask", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	return c, nil
}

package bidask

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// Resident is a request that runs on this replica's engine.
type Resident struct {
	Request  policies.Request
	FrontEnd policies.ReplicaID // whose client it is
	Pinned   policies.PinReason
	Epoch    policies.Epoch
	Since    policies.Micros // when it arrived here
	// Waiting says that it has no token here yet: what it has generated elsewhere is computed again.
	Waiting bool
	// CanRunOn reports whether a replica can run it; nil: all can.
	CanRunOn func(policies.ReplicaID) bool
}

// Situation is what a replica measures of itself, and what the control plane says.
type Situation struct {
	Load policies.Load
	// Capacity is the size of the KV cache where the engine does not report it; 0: unknown.
	Capacity policies.Tokens
	// Ready says that the engine serves requests. While it does not, the replica offers
	// nothing: the requests are lost, and their front ends rescue them.
	Ready bool
	// CanReceive says that KV can be written to the engine's memory. While it cannot, or while
	// the replica is Draining or Retired (another process serves it), it buys nothing.
	CanReceive, Draining, Retired bool
	Plan                          policies.Plan // of the replica's model; the zero Plan if unknown
	// Mean is the mean of Load.Held over the replica's stage by the control plane, if MeanKnown.
	// It is used while the peers give none.
	Mean      policies.Tokens
	MeanKnown bool
	Residents []Resident
	// Priced says that Peers has prices: requests move because they cost less elsewhere, and not because others hold
	// fewer tokens.
	Priced bool
}

// KVCapacity returns the size of the KV cache: by the engine's report, else by Capacity.
func (s *Situation) KVCapacity() policies.Tokens {
	return cmp.Or(s.Load.Engine.Capacity, s.Capacity)
}

// Leaving reports whether nothing new may run here.
func (s *Situation) Leaving() bool { return s.Draining || s.Retired || !s.Ready }

// Scan measures this replica's occupancy, cancels stale sales and offers new ones. It appends
// the resulting actions to out and returns it.
func (t *Trader) Scan(now policies.Micros, in *Situation, out []Action) []Action {
	load, capacity, prefill := in.Load, in.KVCapacity(), t.cfg.Peers.IsPrefill()
	t.occupancy = policies.Occupancy{
		Capacity: capacity, Held: load.KV(), Promised: load.Promised, Throughput: t.throughput.rate(), Draining: in.Leaving() || prefill || !in.CanReceive,
	}
	out = t.Step(Event{Kind: OccupancyMeasured, Now: now, Occupancy: t.occupancy}, out)
	t.cfg.Peers.SetOwnLoad(t.OwnLoad(in))
	s := &stageView{
		Now: now, Plan: in.Plan, Available: func(id policies.ReplicaID) bool { return t.cfg.Peers.Available(now, id) },
		Draining: in.Draining, Prefill: prefill, Capacity: capacity, KV: load.KV(), Held: load.Held,
	}
	s.Mean, s.MeanKnown = t.StageMean(now, in)
	here := t.listResidents(s, in.Residents)
	if in.Priced {
		s.FindMove = func(movable []candidate) (int, policies.ReplicaID, bool) { return t.findMove(now, in, movable) }
	}
	out = t.cancelStaleSales(s, here, out)
	if !in.Ready || t.cfg.KeepRequests {
		return out
	}
	for _, o := range t.selector.SelectOffers(s, maxOffers-len(t.sales)) {
		t.sales[o.Migration.Request] = &forSale{migration: o.Migration}
		t.counts.Offered[o.Migration.Cause]++
		out = t.Step(Event{Kind: Offered, Now: now, Migration: o.Migration, Candidates: o.Candidates, Costs: t.migrationCosts(o), Seed: t.rng.Uint64()}, out)
	}
	return out
}

// findMove returns which of the movable requests saves most where it moves, and where that is.
func (t *Trader) findMove(now policies.Micros, in *Situation, movable []candidate) (int, policies.ReplicaID, bool) {
	t.priced, t.movable = t.priced[:0], t.movable[:0]
	for i := range in.Residents {
		r := &in.Residents[i]
		t.priced = append(t.priced, place.Resident{
			Input: r.Request.Input, Cached: r.Request.Cached, Output: r.Request.Output, MaxOutput: r.Request.MaxOutput,
			Prompts: r.Request.Prompts, Sequences: r.Request.Sequences, Arrived: r.Since, Prefilling: r.Waiting, Leaving: t.sales[r.Request.ID] != nil,
		})
	}
	for i := range movable {
		t.movable = append(t.movable, movable[i].Resident)
	}
	move, ok := t.cfg.Peers.FindMove(now, place.MoveQuery{
		Residents: t.priced, Movable: t.movable, Takes: t.presentCost(),
		CanRunOn: func(i int, to policies.ReplicaID) bool {
			can := in.Residents[i].CanRunOn
			return can == nil || can(to)
		},
	})
	if !ok {
		return 0, "", false
	}
	at := slices.IndexFunc(movable, func(c candidate) bool { return c.Resident == move.Resident })
	return at, move.To, at >= 0
}

// OwnLoad returns the replica's load as its peers should know it.
func (t *Trader) OwnLoad(in *Situation) place.PeerLoad {
	l := in.Load
	return place.PeerLoad{Waiting: l.Promised - min(l.Cached, l.Promised), Total: l.Held + l.Promised + t.machine.Incoming(), Held: l.Held, Running: l.Running, Draining: in.Leaving()}
}

// StageMean returns the mean load of this replica's stage, by its peers or else by the control
// plane. Without a recent one it is unknown: the stage may have changed since, and a replica
// that compares itself with an old mean sells what its peers cannot take.
func (t *Trader) StageMean(now policies.Micros, in *Situation) (mean policies.Tokens, ok bool) {
	if mean, ok := t.cfg.Peers.StageMean(now); ok {
		return mean, true
	}
	return in.Mean, in.MeanKnown
}

// presentCost returns the estimate of migration costs as of now; nil if unknown.
func (t *Trader) presentCost() func(policies.ReplicaID, policies.Tokens) policies.Micros {
	if t.cfg.MigrationCost == nil {
		return nil
	}
	return t.cfg.MigrationCost()
}

// migrationCosts returns the costs of an offer's candidates, or nil if unknown.
func (t *Trader) migrationCosts(o offer) []policies.Micros {
	cost := t.presentCost()
	if cost == nil {
		return nil
	}
	out := make([]policies.Micros, len(o.Candidates))
	for i, id := range o.Candidates {
		out[i] = cost(id, o.Migration.Length)
	}
	return out
}

// listResidents sets the residents of the selector. It leaves out requests without a
// token, which have nothing to migrate. It returns the IDs of all requests that are here, nil
// while none is for sale and none has left.
func (t *Trader) listResidents(s *stageView, residents []Resident) map[string]bool {
	var here map[string]bool
	if len(t.sales)+len(t.departed) > 0 {
		here = make(map[string]bool, len(residents))
	}
	s.Residents = t.residents[:0]
	for i := range residents {
		r := &residents[i]
		id := r.Request.ID
		if here != nil {
			here[id] = true
		}
		if until, ok := t.departed[id]; ok && s.Now < until || r.Waiting || r.Request.Output == 0 {
			continue
		}
		s.Residents = append(s.Residents, candidate{
			Resident: i, Request: id, FrontEnd: r.FrontEnd, Length: r.Request.Length(), Pinned: r.Pinned, Epoch: r.Epoch, Since: r.Since, ForSale: t.sales[id] != nil, CanRunOn: r.CanRunOn,
		})
	}
	t.residents = s.Residents
	for id, until := range t.departed {
		if !here[id] || s.Now >= until {
			delete(t.departed, id)
		}
	}
	return here
}

// cancelStaleSales withdraws offers of requests that have ended and offers that no longer have a
// reason. Those whose transfer runs stay: its executor handles them.
func (t *Trader) cancelStaleSales(s *stageView, here map[string]bool, out []Action) []Action {
	return t.withdraw(s.Now, func(o *forSale) bool { return !here[o.migration.Request] || !t.selector.StillValid(s, o.migration) }, out)
}

// withdraw withdraws the offers that match and whose transfer does not run.
func (t *Trader) withdraw(now policies.Micros, matches func(*forSale) bool, out []Action) []Action {
	var over []policies.Migration
	for _, s := range t.sales {
		if !s.exporting && matches(s) {
			over = append(over, s.migration)
		}
	}
	slices.SortFunc(over, func(a, b policies.Migration) int { return cmp.Compare(a.Request, b.Request) })
	for _, h := range over {
		out = t.Step(Event{Kind: Withdrawn, Now: now, Migration: h}, out)
	}
	return out
}

// Close cancels all sales and releases all reservations. Running transfers continue.
func (t *Trader) Close(now policies.Micros, out []Action) []Action {
	out = t.withdraw(now, func(*forSale) bool { return true }, out)
	t.occupancy.Draining = true
	return t.Step(Event{Kind: OccupancyMeasured, Now: now, Occupancy: t.occupancy}, out)
}

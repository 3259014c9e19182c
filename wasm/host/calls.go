package host

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The calls are alike: encode, again if the arena was too small and could be
// made larger; run; check. They are written out because closures and interfaces
// would allocate, and Go has no other way to say it. All return a *Fault for an
// error, unless they say otherwise.

// Configure gives the instance its configuration, before its first other call.
// A module without the function takes none: Unknown unless it is empty.
func (i *Instance) Configure(c abi.Call, config []byte) error {
	if i.fns[abi.Configure] == nil && len(config) == 0 && i.dead == nil {
		return nil
	}
	n, err := abi.PutConfigure(i.arena(), c, config)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Configure, n); err == nil {
			n, err = abi.PutConfigure(i.arena(), c, config)
		}
	}
	result, err := i.run(abi.Configure, n, err)
	if err != nil {
		return err
	}
	return i.judge(abi.Configure, abi.TakeConfigure(result))
}

// Select returns the index of the winning bid, −1 for none.
func (i *Instance) Select(c abi.Call, bids []policies.Bid) (int, error) {
	n, err := abi.PutSelect(i.arena(), c, bids)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Select, n); err == nil {
			n, err = abi.PutSelect(i.arena(), c, bids)
		}
	}
	result, err := i.run(abi.Select, n, err)
	if err != nil {
		return -1, err
	}
	winner, err := abi.TakeSelect(result, len(bids))
	return winner, i.judge(abi.Select, err)
}

// Quote returns a bid, and whether there is one.
func (i *Instance) Quote(c abi.Call, ask abi.Ask) (policies.Bid, bool, error) {
	n, err := abi.PutQuote(i.arena(), c, ask)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Quote, n); err == nil {
			n, err = abi.PutQuote(i.arena(), c, ask)
		}
	}
	result, err := i.run(abi.Quote, n, err)
	if err != nil {
		return policies.Bid{}, false, err
	}
	bid, ok, err := abi.TakeQuote(i.arena(), result)
	return bid, ok, i.judge(abi.Quote, err)
}

// Excess returns how much a replica should offer.
func (i *Instance) Excess(c abi.Call, own, mean policies.Tokens) (policies.Tokens, error) {
	n, err := abi.PutOutlier(i.arena(), c, own, mean)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Outlier, n); err == nil {
			n, err = abi.PutOutlier(i.arena(), c, own, mean)
		}
	}
	result, err := i.run(abi.Outlier, n, err)
	if err != nil {
		return 0, err
	}
	excess, err := abi.TakeOutlier(i.arena(), result, own)
	return excess, i.judge(abi.Outlier, err)
}

// Place returns the peer to forward to, "" for the own replica.
func (i *Instance) Place(c abi.Call, a policies.Arrival) (policies.ReplicaID, error) {
	n, err := abi.PutPlace(i.arena(), c, a)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Place, n); err == nil {
			n, err = abi.PutPlace(i.arena(), c, a)
		}
	}
	result, err := i.run(abi.Place, n, err)
	if err != nil {
		return "", err
	}
	peer, err := abi.TakePlace(result, a)
	return peer, i.judge(abi.Place, err)
}

// Refine returns where the boundary should lie.
func (i *Instance) Refine(c abi.Call, b policies.Border) (policies.Tokens, error) {
	n, err := abi.PutRefine(i.arena(), c, b)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Refine, n); err == nil {
			n, err = abi.PutRefine(i.arena(), c, b)
		}
	}
	result, err := i.run(abi.Refine, n, err)
	if err != nil {
		return 0, err
	}
	at, err := abi.TakeRefine(i.arena(), result, b)
	return at, i.judge(abi.Refine, err)
}

// Partition returns a partition of the workload, which must be valid. The error
// is policies.ErrInfeasible when the policy says that there is none, else a
// *Fault. That the partition is any good is not checked.
func (i *Instance) Partition(c abi.Call, w policies.Workload) (policies.Partition, error) {
	n, err := abi.PutPartition(i.arena(), c, w)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Partition, n); err == nil {
			n, err = abi.PutPartition(i.arena(), c, w)
		}
	}
	result, err := i.run(abi.Partition, n, err)
	if err != nil {
		return policies.Partition{}, err
	}
	p, err := abi.TakePartition(i.arena(), result, w)
	if err == policies.ErrInfeasible {
		return p, err
	}
	return p, i.judge(abi.Partition, err)
}

// Guard returns a denial, and whether there is one.
func (i *Instance) Guard(c abi.Call, ch abi.Change) (abi.Denial, bool, error) {
	n, err := abi.PutGuard(i.arena(), c, ch)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Guard, n); err == nil {
			n, err = abi.PutGuard(i.arena(), c, ch)
		}
	}
	result, err := i.run(abi.Guard, n, err)
	if err != nil {
		return abi.Denial{}, false, err
	}
	d, denied, err := abi.TakeGuard(i.arena(), result, ch)
	return d, denied, i.judge(abi.Guard, err)
}

// State returns the state that the last call left, which had been given that
// room. It shares the module's memory: it is good until the next call.
func (i *Instance) State(room int) ([]byte, error) {
	return abi.TakeState(i.arena(), room)
}

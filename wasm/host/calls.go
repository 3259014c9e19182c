package host

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Each call encodes its arguments (a second time if the arena was too small and has
// been enlarged), runs, and checks the answer. The code repeats because closures and
// interfaces would allocate. All errors are *Fault, unless stated otherwise.

// Configure passes the configuration to the instance, before any other call. If the
// module does not export the function, a configuration that is not empty is an error
// (Unknown).
func (i *Instance) Configure(c abi.Call, config []byte) error {
	if i.fns[abi.Configure] == nil && len(config) == 0 && i.dead == nil {
		return nil
	}
	n, err := abi.EncodeConfigureCall(i.arena(), c, config)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Configure, n); err == nil {
			n, err = abi.EncodeConfigureCall(i.arena(), c, config)
		}
	}
	result, err := i.run(abi.Configure, n, err)
	if err != nil {
		return err
	}
	return i.wrapAnswerError(abi.Configure, abi.DecodeConfigureResult(result))
}

// Select returns the index of the winning bid, or −1 for none.
func (i *Instance) Select(c abi.Call, bids []policies.Bid) (int, error) {
	n, err := abi.EncodeSelectCall(i.arena(), c, bids)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Select, n); err == nil {
			n, err = abi.EncodeSelectCall(i.arena(), c, bids)
		}
	}
	result, err := i.run(abi.Select, n, err)
	if err != nil {
		return -1, err
	}
	winner, err := abi.DecodeSelectResult(result, len(bids))
	return winner, i.wrapAnswerError(abi.Select, err)
}

// Quote returns a bid, and whether there is one.
func (i *Instance) Quote(c abi.Call, ask abi.Ask) (policies.Bid, bool, error) {
	n, err := abi.EncodeQuoteCall(i.arena(), c, ask)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Quote, n); err == nil {
			n, err = abi.EncodeQuoteCall(i.arena(), c, ask)
		}
	}
	result, err := i.run(abi.Quote, n, err)
	if err != nil {
		return policies.Bid{}, false, err
	}
	bid, ok, err := abi.DecodeQuoteResult(i.arena(), result)
	return bid, ok, i.wrapAnswerError(abi.Quote, err)
}

// Excess returns how much of its load a replica should offer.
func (i *Instance) Excess(c abi.Call, own, mean policies.Tokens) (policies.Tokens, error) {
	n, err := abi.EncodeOutlierCall(i.arena(), c, own, mean)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Outlier, n); err == nil {
			n, err = abi.EncodeOutlierCall(i.arena(), c, own, mean)
		}
	}
	result, err := i.run(abi.Outlier, n, err)
	if err != nil {
		return 0, err
	}
	excess, err := abi.DecodeOutlierResult(i.arena(), result, own)
	return excess, i.wrapAnswerError(abi.Outlier, err)
}

// Place returns the peer to forward to, "" for the own replica.
func (i *Instance) Place(c abi.Call, a policies.Arrival) (policies.ReplicaID, error) {
	n, err := abi.EncodePlaceCall(i.arena(), c, a)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Place, n); err == nil {
			n, err = abi.EncodePlaceCall(i.arena(), c, a)
		}
	}
	result, err := i.run(abi.Place, n, err)
	if err != nil {
		return "", err
	}
	peer, err := abi.DecodePlaceResult(result, a)
	return peer, i.wrapAnswerError(abi.Place, err)
}

// Refine returns the proposed boundary.
func (i *Instance) Refine(c abi.Call, b policies.BoundaryView) (policies.Tokens, error) {
	n, err := abi.EncodeRefineCall(i.arena(), c, b)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Refine, n); err == nil {
			n, err = abi.EncodeRefineCall(i.arena(), c, b)
		}
	}
	result, err := i.run(abi.Refine, n, err)
	if err != nil {
		return 0, err
	}
	at, err := abi.DecodeRefineResult(i.arena(), result, b)
	return at, i.wrapAnswerError(abi.Refine, err)
}

// Partition returns a partition of the workload, which must be valid. The error is
// policies.ErrInfeasible if the policy found no partition, else a *Fault. Partition
// does not check how good the answer is.
func (i *Instance) Partition(c abi.Call, w policies.Workload) (policies.Partition, error) {
	n, err := abi.EncodePartitionCall(i.arena(), c, w)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Partition, n); err == nil {
			n, err = abi.EncodePartitionCall(i.arena(), c, w)
		}
	}
	result, err := i.run(abi.Partition, n, err)
	if err != nil {
		return policies.Partition{}, err
	}
	p, err := abi.DecodePartitionResult(i.arena(), result, w)
	if err == policies.ErrInfeasible {
		return p, err
	}
	return p, i.wrapAnswerError(abi.Partition, err)
}

// Guard returns a denial, and whether there is one.
func (i *Instance) Guard(c abi.Call, ch abi.Change) (abi.Denial, bool, error) {
	n, err := abi.EncodeGuardCall(i.arena(), c, ch)
	if err == abi.ErrShort {
		if err = i.enlarge(abi.Guard, n); err == nil {
			n, err = abi.EncodeGuardCall(i.arena(), c, ch)
		}
	}
	result, err := i.run(abi.Guard, n, err)
	if err != nil {
		return abi.Denial{}, false, err
	}
	d, denied, err := abi.DecodeGuardResult(i.arena(), result, ch)
	return d, denied, i.wrapAnswerError(abi.Guard, err)
}

// State returns the state that the last call left; room is the space that the call had
// for it. The state shares the module's memory: it is valid until the next call.
func (i *Instance) State(room int) ([]byte, error) {
	return abi.DecodeState(i.arena(), room)
}

package host

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Ask makes a call of any kind: it encodes the arguments (a second time if the arena was
// too small and has been enlarged), runs the call and checks the answer, without
// allocating. The error is a *Fault.
func Ask[Q, A any](i *Instance, k *abi.Codec[Q, A], c abi.Call, q Q) (a A, err error) {
	n, err := k.EncodeCall(i.arena(), c, q)
	if err == abi.ErrShort {
		if err = i.enlarge(k.Kind, n); err == nil {
			n, err = k.EncodeCall(i.arena(), c, q)
		}
	}
	result, err := i.run(k.Kind, n, err)
	if err != nil {
		return a, err
	}
	a, err = k.DecodeResult(i.arena(), result, q)
	return a, i.wrapAnswerError(k.Kind, err)
}

// Configure passes the configuration to the instance, before any other call. If the
// module does not export the function, a configuration that is not empty is an error
// (Unknown).
func (i *Instance) Configure(c abi.Call, config []byte) error {
	if i.fns[abi.Configure] == nil && len(config) == 0 && i.dead == nil {
		return nil
	}
	_, err := Ask(i, &abi.ConfigureCodec, c, config)
	return err
}

// Select returns the index of the winning bid, or −1 for none.
func (i *Instance) Select(c abi.Call, bids []policies.Bid) (int, error) {
	winner, err := Ask(i, &abi.SelectCodec, c, bids)
	if err != nil {
		return -1, err
	}
	return winner, nil
}

// Quote returns a bid, and whether there is one.
func (i *Instance) Quote(c abi.Call, ask abi.QuoteArgs) (policies.Bid, bool, error) {
	a, err := Ask(i, &abi.QuoteCodec, c, ask)
	return a.Bid, a.OK, err
}

// Excess returns how much of its load a replica should offer.
func (i *Instance) Excess(c abi.Call, own, mean policies.Tokens) (policies.Tokens, error) {
	return Ask(i, &abi.OutlierCodec, c, abi.Loads{Own: own, Mean: mean})
}

// Place returns the peer to forward to, "" for the own replica.
func (i *Instance) Place(c abi.Call, a policies.Arrival) (policies.ReplicaID, error) {
	return Ask(i, &abi.PlaceCodec, c, a)
}

// Refine returns the proposed boundary.
func (i *Instance) Refine(c abi.Call, b policies.BoundaryView) (policies.Tokens, error) {
	return Ask(i, &abi.RefineCodec, c, b)
}

// Partition returns a partition of the workload, which must be valid. The error is
// policies.ErrInfeasible if the policy found no partition, else a *Fault. Partition
// does not check how good the answer is.
func (i *Instance) Partition(c abi.Call, w policies.Workload) (policies.Partition, error) {
	a, err := Ask(i, &abi.PartitionCodec, c, w)
	if err == nil {
		err = a.Err
	}
	return a.Partition, err
}

// Guard returns a denial, and whether there is one.
func (i *Instance) Guard(c abi.Call, ch abi.Change) (abi.Denial, bool, error) {
	a, err := Ask(i, &abi.GuardCodec, c, ch)
	return a.Denial, a.Denied, err
}

// State returns the state that the last call left; room is the space that the call had
// for it. The state shares the module's memory: it is valid until the next call.
func (i *Instance) State(room int) ([]byte, error) {
	return abi.DecodeState(i.arena(), room)
}

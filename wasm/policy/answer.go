package policy

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// Decides reports whether there is a native policy of a kind.
func (n Native) Decides(k abi.Kind) bool {
	return k < abi.NumKinds && kinds[k] != nil && kinds[k].decidedBy(&n)
}

// Decide returns the answer of the native policy of a codec's kind, which must exist.
func Decide[Q, A any](n *Native, k *abi.Codec[Q, A], q Q) A {
	return kinds[k.Kind].(*adapter[Q, A]).native(n, q)
}

// Answer answers a frame with the native policy of its kind, as a module with that policy
// would, and records the call in r, whose slices it reuses. It consumes no fuel. The
// error is a *host.Fault with the cause that is also in r.Cause: Unknown when there is no
// such policy.
func (n Native) Answer(frame []byte, r *host.Record) error {
	k := abi.NumKinds
	if len(frame) >= abi.HeaderSize && binary.LittleEndian.Uint32(frame) == abi.Magic {
		k = min(abi.NumKinds, abi.Kind(binary.LittleEndian.Uint16(frame[6:])))
	}
	out := slices.Clone(frame)
	var result uint64
	var err error
	decided := n.Decides(k)
	if decided {
		result, err = kinds[k].answer(&n, out)
	}
	*r = host.Record{Kind: k, Frame: append(r.Frame[:0], frame...), Result: result, Output: r.Output[:0]}
	if status, _ := abi.Unpack(result); err == nil && status > abi.None {
		err = status
	}
	switch {
	case !decided:
		r.Cause, err = host.Unknown, fmt.Errorf("no native policy decides %s", k)
	case err != nil:
		r.Cause = host.Refused
	default:
		at, n := binary.LittleEndian.Uint32(out[56:]), binary.LittleEndian.Uint32(out[60:])
		if end := uint64(at) + uint64(n); end <= uint64(len(out)) {
			r.Output = append(r.Output, out[at:end]...)
		}
		return nil
	}
	return &host.Fault{Kind: k, Cause: r.Cause, Err: err}
}

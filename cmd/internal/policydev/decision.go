package policydev

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// describeDecision describes the decision of a record in a few words.
func describeDecision(r *host.Record) string {
	if r.Cause != 0 {
		return r.Cause.String()
	}
	text, err := describeAnswer(r, frameWithOutput(r))
	if err != nil {
		return err.Error()
	}
	return text
}

// frameWithOutput returns a record's frame with the output in it.
func frameWithOutput(r *host.Record) []byte {
	frame := slices.Clone(r.Frame)
	if at := binary.LittleEndian.Uint32(frame[56:]); uint64(at)+uint64(len(r.Output)) <= uint64(len(frame)) {
		copy(frame[at:], r.Output)
	}
	return frame
}

func describeAnswer(r *host.Record, frame []byte) (string, error) {
	var s abi.Status
	switch r.Kind {
	case abi.Select:
		bids, s := abi.DecodeSelectCall(r.Frame, nil)
		if s != abi.OK {
			return "", s
		}
		i, err := abi.DecodeSelectResult(r.Result, len(bids))
		if err != nil || i < 0 {
			return "none of the bids", err
		}
		return fmt.Sprintf("%s (load %d, start %d µs)", quote(string(bids[i].From)), bids[i].Load, bids[i].Start), nil
	case abi.Quote:
		bid, bids, err := abi.DecodeQuoteResult(frame, r.Result)
		if err != nil || !bids {
			return "no bid", err
		}
		return fmt.Sprintf("load %d, start %d µs", bid.Load, bid.Start), nil
	case abi.Outlier:
		own, _, s := abi.DecodeOutlierCall(r.Frame)
		if s != abi.OK {
			return "", s
		}
		x, err := abi.DecodeOutlierResult(frame, r.Result, own)
		return fmt.Sprintf("offer %d tokens", x), err
	case abi.Place:
		a, s := abi.DecodePlaceCall(r.Frame, nil)
		if s != abi.OK {
			return "", s
		}
		id, err := abi.DecodePlaceResult(r.Result, a)
		if err != nil || id == "" {
			return "stay", err
		}
		return "forward to " + quote(string(id)), nil
	case abi.Refine:
		b, _, s := abi.DecodeRefineCall(r.Frame, nil)
		if s != abi.OK {
			return "", s
		}
		t, err := abi.DecodeRefineResult(frame, r.Result, b)
		return fmt.Sprintf("%d (is %d)", t, b.Boundary), err
	case abi.Partition:
		var w policies.Workload
		if s = abi.DecodePartitionCall(r.Frame, &w); s != abi.OK {
			return "", s
		}
		p, err := abi.DecodePartitionResult(frame, r.Result, w)
		if err == policies.ErrInfeasible {
			return "infeasible", nil
		}
		if err != nil {
			return "", err
		}
		var stages []string
		for i, n := range p.Counts {
			end := "∞"
			if i < len(p.Cuts) {
				end = fmt.Sprint(int64(p.Cuts[i]))
			}
			stages = append(stages, fmt.Sprintf("%d to %s", n, end))
		}
		return fmt.Sprintf("%s, cost %.4g", strings.Join(stages, ", "), p.Cost), nil
	case abi.Guard:
		ch, s := abi.DecodeGuardCall(r.Frame)
		if s != abi.OK {
			return "", s
		}
		d, denied, err := abi.DecodeGuardResult(frame, r.Result, ch)
		if err != nil || !denied {
			return "allowed", err
		}
		where := "the plan"
		if d.Stage >= 0 {
			where = fmt.Sprintf("stage %d", d.Stage)
		}
		return fmt.Sprintf("denied by rule %d for %s: %s", d.Code, where, quote(d.Detail)), nil
	}
	return "", s
}

// quote makes text from a module safe to print, and leaves plain text alone.
func quote(s string) string {
	q := fmt.Sprintf("%q", s)
	if q == `"`+s+`"` && s != "" {
		return s
	}
	return q
}

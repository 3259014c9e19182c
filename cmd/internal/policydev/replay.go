package policydev

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// ReplayResult has the answers of a Decider to frames.
type ReplayResult struct {
	Records []host.Record
	// Memory is the SHA-256 of the instance's memory afterwards, in hexadecimal;
	// "" for a native policy.
	Memory string
	// Digest is the digest of all results, outputs and fuel, for comparisons between
	// processes.
	Digest string
}

// Replay replays frames in order on a new instance, and on another one after an instance
// has failed. It returns an error if the module decides none of the frames.
func Replay(ctx context.Context, s *Subject, frames []Frame) (ReplayResult, error) {
	if err := s.decidesSome(frames); err != nil {
		return ReplayResult{}, err
	}
	i, err := s.instance()
	if err != nil {
		return ReplayResult{}, err
	}
	records, err := replayFrames(ctx, i, frames, func() (Decider, error) {
		err := i.Close()
		if err == nil {
			i, err = s.instance()
		}
		return i, err
	})
	if err != nil {
		return ReplayResult{}, errors.Join(err, i.Close())
	}
	sum := i.Hash()
	return ReplayResult{records, hex.EncodeToString(sum[:]), digest(records)}, i.Close()
}

// decidesSome returns an error if a module decides the kind of none of the frames.
func (s *Subject) decidesSome(frames []Frame) error {
	var others []abi.Kind
	for _, f := range frames {
		k := abi.KindOf(f.Frame)
		if s.Module.Decides(k) {
			return nil
		}
		if !slices.Contains(others, k) {
			others = append(others, k)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%s decides %s, and all %d frames are of %s, beginning with frame 0: replay those of its own kinds",
		s.Path, joinKinds(s.kinds()), len(frames), joinKinds(others))
}

// ReplayNative replays frames on a built-in policy.
func ReplayNative(ctx context.Context, name string, frames []Frame) (ReplayResult, error) {
	var kinds []abi.Kind
	for _, f := range frames {
		if k := abi.KindOf(f.Frame); !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	b, err := findBuiltin(name, kinds)
	if err != nil {
		return ReplayResult{}, err
	}
	records, err := replayFrames(ctx, b, frames, func() (Decider, error) { return b, nil })
	return ReplayResult{Records: records, Digest: digest(records)}, err
}

func replayFrames(ctx context.Context, d Decider, frames []Frame, renew func() (Decider, error)) ([]host.Record, error) {
	records := make([]host.Record, len(frames))
	for n, f := range frames {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		err := d.Replay(f.Frame, &records[n])
		if records[n].Frame == nil { // the call was not made
			records[n].Frame, records[n].Kind = f.Frame, abi.KindOf(f.Frame)
			records[n].Cause = host.CauseOf(err)
		}
		if err != nil && host.CauseOf(err).Fatal() {
			if d, err = renew(); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}

func digest(records []host.Record) string {
	h := sha256.New()
	var b []byte
	for n := range records {
		r := &records[n]
		b = binary.LittleEndian.AppendUint64(b[:0], r.Result)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Fuel))
		b = append(b, byte(r.Cause))
		h.Write(append(b, calllog.Output(r)...))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Difference is a frame with different answers of two deciders.
type Difference struct {
	Frame int    `json:"frame"` // counted from 0
	Kind  string `json:"kind"`
	A     string `json:"a"`
	B     string `json:"b"`
}

// Summary sums up one decider's answers.
type Summary struct {
	Name   string         `json:"name"`
	Fuel50 int64          `json:"fuel_p50"` // ticks; 0 for a native policy
	Fuel99 int64          `json:"fuel_p99"`
	Faults map[string]int `json:"faults"` // by cause; answered by the native policy in a fleet
	Memory string         `json:"memory_sha256,omitempty"`
	Digest string         `json:"digest"`
}

// Comparison compares the answers of two deciders to the same frames.
type Comparison struct {
	A       Summary      `json:"a"`
	B       Summary      `json:"b"`
	Frames  int          `json:"frames"`
	Same    int          `json:"same"`
	Differ  int          `json:"differ"`
	Unknown int          `json:"unknown"` // A has no answer, or one of them does not decide the kind
	Shown   []Difference `json:"differences"`
}

// Compare compares the answers of two deciders to the same frames. It keeps the
// first show differences.
func Compare(a, b []host.Record, show int) Comparison {
	c := Comparison{Frames: len(a), Shown: []Difference{}}
	c.A, c.B = summarize(a), summarize(b)
	for n := range a {
		x, y := &a[n], &b[n]
		switch {
		case x.Frame == nil, x.Cause == host.Unknown, y.Cause == host.Unknown:
			c.Unknown++
		case calllog.SameAnswer(x, y):
			c.Same++
		default:
			c.Differ++
			if len(c.Shown) < show {
				c.Shown = append(c.Shown, Difference{n, y.Kind.String(), describeDecision(x), describeDecision(y)})
			}
		}
	}
	return c
}

func summarize(records []host.Record) Summary {
	s := Summary{Faults: map[string]int{}}
	var fuel []int64
	for n := range records {
		if records[n].Frame == nil {
			continue
		}
		fuel = append(fuel, records[n].Fuel)
		if c := records[n].Cause; c != 0 {
			s.Faults[c.String()]++
		}
	}
	if len(fuel) > 0 {
		slices.Sort(fuel)
		s.Fuel50, s.Fuel99 = quantile(fuel, 50), quantile(fuel, 99)
	}
	return s
}

// Recorded returns the recorded answers of frames; a frame without one has an
// empty record.
func Recorded(frames []Frame) []host.Record {
	records := make([]host.Record, len(frames))
	for n, f := range frames {
		if f.Answer != nil {
			records[n] = *f.Answer
		}
	}
	return records
}

// Changed counts the frames whose recorded answer is of the very module that was replayed, and differs: in the decision, or
// in its fuel alone.
func Changed(frames []Frame, played []host.Record) (decisions, fuel int) {
	for n := range frames {
		was, now := frames[n].Answer, &played[n]
		switch {
		case was == nil || !frames[n].FuelComparable || was.Module != now.Module || now.Module == [len(now.Module)]byte{} || now.Equal(was):
		case was.Result == now.Result && was.Cause == now.Cause && bytes.Equal(was.Output, now.Output):
			fuel++
		default:
			decisions++
		}
	}
	return decisions, fuel
}

package policydev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestConfig configures Test.
type TestConfig struct {
	// Native is the built-in policy with which the module's decisions must agree; "" for
	// none.
	Native string
	// Calls is how often the leak test calls each kind. 0 means 1e6, for refine
	// and guard 1e5, for partition 1e3.
	Calls int
	// Random is the number of random frames of each kind. 0 means 2000, for partition
	// 100.
	Random int
	// Frames are recorded calls that are also replayed.
	Frames []Frame
	// Golden has the answers that the module must give, as Expect returns them. Empty
	// means no expectations.
	Golden []byte
	// Seed is the seed of the random frames.
	Seed uint64
}

// Defaults of TestConfig.
const (
	manyCalls, someCalls, fewCalls = 1_000_000, 100_000, 1000
	manyFrames, fewFrames          = 2000, 100
)

func (c TestConfig) calls(k abi.Kind) int {
	switch {
	case c.Calls > 0:
		return c.Calls
	case k == abi.Partition:
		return fewCalls
	case k == abi.Refine || k == abi.Guard:
		return someCalls
	}
	return manyCalls
}

func (c TestConfig) random(k abi.Kind) int {
	switch {
	case c.Random > 0:
		return c.Random
	case k == abi.Partition:
		return fewFrames
	}
	return manyFrames
}

// Report is the result of Test.
type Report struct {
	File   string  `json:"file"`
	SHA256 string  `json:"sha256"`
	Bytes  int     `json:"bytes"`
	Checks []Check `json:"checks"`
	Failed int     `json:"failed"`
}

// Check is one line of a report.
type Check struct {
	Kind    string `json:"kind"`
	Name    string `json:"check"`
	Outcome string `json:"outcome"` // "ok", "failed" or "skipped"
	Text    string `json:"text"`
}

// The outcomes of a check.
const (
	Passed  = "ok"
	Failed  = "failed"
	Skipped = "skipped"
)

// Test runs every check on a module. The error is about the context or an invalid
// configuration; faults of the module are in the report.
func Test(ctx context.Context, s *Subject, c TestConfig) (Report, error) {
	r := Report{File: s.Path, SHA256: s.SHA256(), Bytes: s.Bytes}
	kinds := s.kinds()
	var twin *builtin
	if c.Native != "" {
		b, err := findBuiltin(c.Native, kinds)
		if err != nil {
			return r, err
		}
		twin = &b
	}
	for _, k := range kinds {
		t := &tester{ctx: ctx, subject: s, config: c, kind: k, report: &r}
		frames, err := randomFrames(c.Seed, k, c.random(k))
		if err != nil {
			return r, err
		}
		t.check("golden vectors", t.golden)
		t.check("expected", t.expected)
		t.check("same as native", func() (string, error) { return t.equality(twin, frames) })
		t.check("fuel", func() (string, error) { return t.fuel(frames) })
		t.check("leaks", t.leaks)
		t.check("replay", func() (string, error) {
			played, err := t.replay(frames)
			return fmt.Sprintf("%s twice: equal results, fuel and memory (%.12s)", plural(len(frames), "frame"), played.Memory), err
		})
		if err := ctx.Err(); err != nil {
			return r, err
		}
	}
	if len(c.Frames) > 0 {
		t := &tester{ctx: ctx, subject: s, config: c, kind: abi.NumKinds, report: &r}
		t.check("recorded", func() (string, error) { return t.recorded(c.Frames) })
	}
	return r, ctx.Err()
}

// tester tests one kind.
type tester struct {
	ctx     context.Context
	subject *Subject
	config  TestConfig
	kind    abi.Kind
	report  *Report
}

// skipError is the error of a check that does not apply.
type skipError string

func (s skipError) Error() string { return string(s) }

func (t *tester) check(name string, run func() (string, error)) {
	c := Check{Kind: t.kind.String(), Name: name, Outcome: Passed}
	if t.kind == abi.NumKinds {
		c.Kind = "all"
	}
	text, err := run()
	var skip skipError
	switch {
	case errors.As(err, &skip):
		c.Outcome, text = Skipped, string(skip)
	case err != nil:
		c.Outcome, text = Failed, err.Error()
		t.report.Failed++
	}
	c.Text = text
	t.report.Checks = append(t.report.Checks, c)
}

// withInstance calls use with a new instance, which it closes afterwards.
func (t *tester) withInstance(use func(*host.Instance) error) error {
	i, err := t.subject.instance()
	if err != nil {
		return err
	}
	return errors.Join(use(i), i.Close())
}

// golden replays the vectors of wasm/abi: each unchanged, in the layout of a possible later
// host, and with an unknown flag.
func (t *tester) golden() (string, error) {
	vectors, err := goldenVectors(t.kind)
	if err != nil {
		return "", err
	}
	names := slices.Sorted(maps.Keys(vectors))
	err = t.withInstance(func(i *host.Instance) error {
		for _, name := range names {
			var now, later host.Record
			frame := vectors[name]
			if err := i.Replay(frame, &now); err != nil && (requiresAnswer(frame) || now.Cause.Fatal()) {
				return fmt.Errorf("vector %s: %w", name, err)
			}
			err := i.Replay(laterLayout(frame), &later)
			if err != nil && now.Cause == 0 || later.Result != now.Result || string(later.Output) != string(now.Output) {
				return fmt.Errorf("vector %s: with eight bytes more in the header, the arguments and each record the answer differs: "+
					"go by hdr_len, rec_stride and the offsets", name)
			}
			flagged := slices.Clone(frame)
			binary.LittleEndian.PutUint32(flagged[8:], 1<<31)
			// The error is that of the host's own decoder, which refuses the flag.
			if _ = i.Replay(flagged, &later); later.Cause.Fatal() && later.Cause != 0 {
				return fmt.Errorf("vector %s, with an unknown flag set: %s", name, later.Cause)
			}
			if status, value := abi.Unpack(later.Result); status != abi.Unsupported {
				return fmt.Errorf("vector %s: with an unknown flag set the status is %d, and the value %d; it must be %d, Unsupported", name, status, value, abi.Unsupported)
			}
		}
		return nil
	})
	return plural(len(names), "vector") + ", also in a later host's layout", err
}

// requiresAnswer reports whether a policy must have an answer to a frame.
func requiresAnswer(frame []byte) bool {
	if abi.KindOf(frame) != abi.Partition {
		return true
	}
	var w policies.Workload
	return abi.DecodePartitionCall(frame, &w) == abi.OK && w.Validate() == nil
}

// laterLayout returns the frame as a later host could write it: the header, the arguments and
// each record have eight more bytes at their ends.
func laterLayout(frame []byte) []byte {
	le := binary.LittleEndian
	field := func(at int) int { return int(le.Uint32(frame[at:])) }
	header, stride := int(le.Uint16(frame[4:])), field(32)
	added := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	out := append(slices.Clone(frame[:header]), added...)
	args := len(out)
	if field(20) > 0 {
		out = append(append(out, frame[field(16):][:field(20)]...), added...)
		le.PutUint32(out[20:], le.Uint32(out[20:])+8)
	}
	records := len(out)
	for n := range field(28) {
		out = append(append(out, frame[field(24)+n*stride:][:stride]...), added...)
	}
	if stride > 0 {
		le.PutUint32(out[32:], uint32(stride+8))
	}
	moved := uint32(len(out) - field(36))
	out = append(out, frame[field(36):]...)
	le.PutUint16(out[4:], uint16(header+8))
	le.PutUint32(out[16:], uint32(args))
	le.PutUint32(out[24:], uint32(records))
	for _, off := range []int{36, 44, 56} { // where aux, state and output begin, behind the records
		le.PutUint32(out[off:], le.Uint32(out[off:])+moved)
	}
	return out
}

func (t *tester) equality(twin *builtin, frames []Frame) (string, error) {
	if twin == nil {
		return "", skipError("name a built-in policy with --native")
	}
	if !twin.Decides(t.kind) {
		return "", skipError(twin.name + " does not decide this kind")
	}
	err := t.withInstance(func(i *host.Instance) error {
		var got, want host.Record
		for n, f := range frames {
			if err := t.ctx.Err(); err != nil {
				return err
			}
			if err := twin.Replay(f.Frame, &want); err != nil {
				return fmt.Errorf("random frame %d: %s: %w", n, twin.name, err)
			}
			if err := i.Replay(f.Frame, &got); err != nil {
				return fmt.Errorf("random frame %d: %w", n, err)
			}
			if !calllog.SameAnswer(&got, &want) {
				return fmt.Errorf("random frame %d: %s; %s decides: %s", n, describeDecision(&got), twin.name, describeDecision(&want))
			}
		}
		return nil
	})
	return fmt.Sprintf("%s, decided as %s does", plural(len(frames), "random frame"), twin.name), err
}

// fuel measures the fuel of random frames.
func (t *tester) fuel(frames []Frame) (string, error) {
	limit := t.subject.Module.Limit(t.kind).Fuel
	var used []int64
	err := t.withInstance(func(i *host.Instance) error {
		var r host.Record
		for n, f := range frames {
			if err := t.ctx.Err(); err != nil {
				return err
			}
			if err := i.Replay(f.Frame, &r); err != nil {
				return fmt.Errorf("random frame %d of %d bytes, after %d ticks: %w", n, len(f.Frame), i.Fuel(), err)
			}
			used = append(used, r.Fuel)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	slices.Sort(used)
	most := used[len(used)-1]
	return fmt.Sprintf("p50 %d, p99 %d, most %d ticks: %.1f %% of the limit, %d", quantile(used, 50), quantile(used, 99), most, 100*float64(most)/float64(limit), limit), nil
}

// leakFactor bounds the calls of the leak test for a module whose memory still grows, as a
// multiple of the configured number.
const leakFactor = 8

// leaks makes many calls. Memory may grow at first, until the guest's allocator reuses
// freed memory; a module passes when it then serves as many calls again without growing.
func (t *tester) leaks() (text string, err error) {
	calls := t.config.calls(t.kind)
	source := newRandom(t.config.Seed, t.kind)
	var asked [64]call
	for n := range asked {
		asked[n] = source.typical(t.kind)
	}
	err = t.withInstance(func(i *host.Instance) error {
		_, first := i.Memory()
		half := first
		for n := 0; ; n++ {
			if n%1024 == 0 && t.ctx.Err() != nil {
				return t.ctx.Err()
			}
			now, _ := i.Memory()
			switch {
			case n == (calls+1)/2:
				half = now
			case n == calls && now == half:
				text = fmt.Sprintf("%d calls, memory %s at first, %s at the end", calls, formatSize(first), formatSize(now))
				return nil
			case n == calls && calls >= leakFactor*t.config.calls(t.kind):
				return fmt.Errorf("memory was %s at first, %s after half of %d calls, %s at the end: something is kept from call to call", formatSize(first), formatSize(half), calls, formatSize(now))
			case n == calls:
				half, calls = now, 2*calls
			}
			if err := asked[n%len(asked)].ask(i, abi.Call{ID: uint64(n), Seed: uint64(n)}); err != nil {
				return fmt.Errorf("call %d, with memory %s, %s at first: %w", n, formatSize(now), formatSize(first), err)
			}
		}
	})
	return text, err
}

// replay checks that two instances give the same answers to the same frames, and returns
// these.
func (t *tester) replay(frames []Frame) (ReplayResult, error) {
	a, err := Replay(t.ctx, t.subject, frames)
	if err != nil {
		return a, err
	}
	b, err := Replay(t.ctx, t.subject, frames)
	if err != nil {
		return a, err
	}
	for n := range a.Records {
		if !a.Records[n].Equal(&b.Records[n]) {
			return a, fmt.Errorf("frame %d: one instance says %s after %d ticks, the other %s after %d: a policy may depend on nothing but its call",
				n, describeDecision(&a.Records[n]), a.Records[n].Fuel, describeDecision(&b.Records[n]), b.Records[n].Fuel)
		}
	}
	if a.Memory != b.Memory {
		return a, errors.New("two instances have different memories after the same calls")
	}
	return a, nil
}

// recorded replays recorded calls and compares the answers.
func (t *tester) recorded(all []Frame) (string, error) {
	var frames []Frame
	for _, f := range all {
		if t.subject.Module.Decides(abi.KindOf(f.Frame)) {
			frames = append(frames, f)
		}
	}
	if len(frames) == 0 {
		return "", skipError(fmt.Sprintf("none of %d frames is of a kind that the module decides", len(all)))
	}
	played, err := t.replay(frames)
	if err != nil {
		return "", err
	}
	known := 0
	for n, f := range frames {
		got := &played.Records[n]
		if f.Answer == nil {
			if got.Cause != 0 {
				return "", fmt.Errorf("frame %d: no answer: %s", n, got.Cause)
			}
			continue
		}
		known++
		if !calllog.SameAnswer(got, f.Answer) {
			return "", fmt.Errorf("frame %d: %s; in the file: %s (\"cascade policy diff -o\" writes the new answers)", n, describeDecision(got), describeDecision(f.Answer))
		}
		if f.FuelComparable && f.Answer.Module == t.subject.Module.SHA256() && got.Fuel != f.Answer.Fuel {
			return "", fmt.Errorf("frame %d: %d ticks; in the file, of the same module: %d", n, got.Fuel, f.Answer.Fuel)
		}
	}
	return fmt.Sprintf("%s, %d with a known answer; memory %s", plural(len(frames), "frame"), known, played.Memory[:12]), nil
}

// quantile returns a percentile of a sorted list that is not empty.
func quantile(sorted []int64, percent int) int64 {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// plural formats a number with its noun.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// formatSize formats a size of memory, which is a multiple of a page.
func formatSize(bytes uint32) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

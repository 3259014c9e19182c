package abi

import (
	"bytes"
	"encoding/binary"
	"go/build"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// roundTrip encodes arguments into an arena that is not zeroed, and decodes them from the
// frame and from a widened one.
func roundTrip(t *testing.T, k kindCase, in []byte) {
	t.Helper()
	s := &source{in}
	c := s.call()
	rest := bytes.Clone(s.b)
	arena := bytes.Repeat([]byte{0xaa}, 1<<14)
	want, n, err := k.put(s, arena, c)
	if err != nil {
		t.Fatalf("%v: %v", k.kind, err)
	}
	frame := arena[:n]
	if got, status := k.get(frame); status != OK || got != want {
		t.Fatalf("%v: %v\ngot  %s\nwant %s", k.kind, status, got, want)
	}
	if got, status := k.get(widen(frame)); status != OK || got != want {
		t.Fatalf("%v, widened: %v\ngot  %s\nwant %s", k.kind, status, got, want)
	}
	ctx, status := DecodeContext(frame)
	if status != OK || ctx.Kind != k.kind || ctx.ID != c.ID || ctx.Now != c.Now || ctx.Seed != c.Seed ||
		string(ctx.State[:ctx.Length]) != string(c.State) || len(ctx.State) != c.Room {
		t.Fatalf("%v: context %+v of %+v", k.kind, ctx, c)
	}
	// The frame does not depend on the earlier content of the arena.
	other := make([]byte, 1<<14)
	if _, m, err := k.put(&source{rest}, other, c); err != nil || !bytes.Equal(other[:m], frame) {
		t.Fatalf("%v: the frame depends on what was in the arena", k.kind)
	}
	if arena[n] != 0xaa {
		t.Fatalf("%v: written beyond the frame", k.kind)
	}
	// With one byte less, the error has the required length.
	if _, m, err := k.put(&source{rest}, make([]byte, n-1), c); err != ErrShort || m != n {
		t.Fatalf("%v: in too small an arena: %d, %v", k.kind, m, err)
	}
}

// widen lays a frame out as a later version could: with larger parts, in another order, and
// with data in the new fields.
func widen(frame []byte) []byte {
	le := binary.LittleEndian
	field := func(at int) uint32 { return le.Uint32(frame[at:]) }
	const more = 24
	out := append(bytes.Clone(frame[:HeaderSize]), bytes.Repeat([]byte{0xee}, more)...)
	le.PutUint16(out[4:], HeaderSize+more)
	add := func(offAt int, b []byte) {
		le.PutUint32(out[offAt:], uint32(len(out)))
		out = append(out, b...)
		for len(out)%8 != 0 {
			out = append(out, 0xdd)
		}
	}
	part := func(offAt, n int) []byte { return frame[field(offAt):][:n] }
	add(56, part(56, int(field(60))))
	add(36, part(36, int(field(40))))
	add(44, part(44, int(field(52))))
	stride, count := int(field(32)), int(field(28))
	var records []byte
	for i := range count {
		records = append(records, part(24, stride*count)[i*stride:(i+1)*stride]...)
		records = append(records, bytes.Repeat([]byte{0xcc}, 16)...)
	}
	add(24, records)
	if stride > 0 {
		le.PutUint32(out[32:], uint32(stride+16))
	}
	add(16, append(bytes.Clone(part(16, int(field(20)))), bytes.Repeat([]byte{0xbb}, 40)...))
	le.PutUint32(out[20:], field(20)+40)
	return out
}

func TestRoundTrips(t *testing.T) {
	for _, k := range kindCases {
		for seed := range uint64(200) {
			roundTrip(t, k, random(seed, 900))
		}
		roundTrip(t, k, nil)
	}
}

func FuzzRoundTrip(f *testing.F) {
	for seed := range uint64(len(kindCases)) {
		f.Add(byte(seed), random(seed, 300))
	}
	f.Fuzz(func(t *testing.T, kind byte, in []byte) {
		roundTrip(t, kindCases[int(kind)%len(kindCases)], in)
	})
}

// FuzzGarbage decodes arbitrary bytes as everything. Nothing may panic; a read behind the
// frame would, because the memory ends there.
func FuzzGarbage(f *testing.F) {
	arena := make([]byte, 1<<14)
	for i, k := range kindCases {
		s := &source{random(uint64(i), 400)}
		if _, n, err := k.put(s, arena, s.call()); err == nil {
			f.Add(bytes.Clone(arena[:n]), uint64(16))
			f.Add(widen(arena[:n]), Result(None, 40))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, result uint64) {
		frame = slices.Clip(bytes.Clone(frame))
		for _, k := range kindCases {
			words, _ := k.get(frame) // printing reads every string
			_ = words
		}
		if ctx, s := DecodeContext(frame); s == OK && ctx.Length > len(ctx.State) {
			t.Fatal("the state is longer than its room")
		}
		// Guests decode invalid frames, and hosts decode what guests leave.
		EncodeQuoteResult(frame, policies.Bid{}, true)
		EncodeOutlierResult(frame, 1)
		EncodePartitionResult(frame, policies.Partition{Counts: []int{1}}, true)
		EncodeGuardResult(frame, Denial{Detail: "no"}, true)
		SetState(frame, int(result%5000))
		DecodeState(frame, 100)
		w := policies.Workload{Replicas: 8}
		if p, err := DecodePartitionResult(frame, result, w); err == nil {
			sum := 0
			for _, k := range p.Counts {
				sum += k
			}
			if sum != w.Replicas || len(p.Cuts)+1 != len(p.Counts) || len(p.Counts) > policies.MaxStages {
				t.Fatalf("accepted %+v", p)
			}
		}
		b := policies.BoundaryView{Low: 10, High: 20, Boundary: 15}
		if at, err := DecodeRefineResult(frame, result, b); err == nil && (at <= b.Low || at >= b.High) {
			t.Fatalf("accepted the boundary %d", at)
		}
		if bid, ok, err := DecodeQuoteResult(frame, result); err == nil && ok && (bid.Load < 0 || bid.Start < 0) {
			t.Fatalf("accepted %+v", bid)
		}
		if x, err := DecodeOutlierResult(frame, result, 100); err == nil && (x < 0 || x > 100) {
			t.Fatalf("accepted the excess %d", x)
		}
		if i, err := DecodeSelectResult(result, 3); err == nil && (i < -1 || i >= 3) {
			t.Fatalf("accepted the index %d", i)
		}
		if d, denied, err := DecodeGuardResult(frame, result, Change{}); err == nil && denied && (d.Stage != -1 || len(d.Detail) > MaxDetail) {
			t.Fatalf("accepted %+v", d)
		}
		if _, err := DecodePlaceResult(result, policies.Arrival{Peers: make([]policies.Candidate, 2)}); err == nil && result>>32 == 0 && uint32(result) > 1 {
			t.Fatal("accepted a peer that is not there")
		}
		if (DecodeConfigureResult(result) == nil) != (result>>32 == 0) {
			t.Fatal("accepted a status that is an error")
		}
	})
}

// TestHeaderIsChecked breaks one field of a valid frame at a time.
func TestHeaderIsChecked(t *testing.T) {
	good := make([]byte, 1<<10)
	n := testkit.Must(EncodeSelectCall(good, Call{}, []policies.Bid{{From: "a", Load: 1}, {From: "b", Load: 2}}))
	for _, c := range []struct {
		name string
		at   int
		to   uint32
		want Status
	}{
		{"magic", 0, 1, BadFrame},
		{"kind", 4, HeaderSize | uint32(Refine)<<16, Unsupported},
		{"header too short", 4, 80 | uint32(Select)<<16, BadFrame},
		{"header beyond the frame", 4, 0xfff8 | uint32(Select)<<16, BadFrame},
		{"unknown flag", 8, 1, Unsupported},
		{"arguments outside", 16, 0xfffffff8, BadFrame},
		{"records outside", 24, uint32(n) - 8, BadFrame},
		{"too many records", 28, 1 << 30, BadFrame},
		{"product over 32 bits", 28, 1 << 31, BadFrame},
		{"stride too short", 32, 16, BadFrame},
		{"stride 0", 32, 0, BadFrame},
		{"huge stride", 32, 1 << 31, BadFrame},
		{"aux outside", 40, 1000, BadFrame},
		{"texts outside aux", 40, 1, BadFrame},
		{"output outside", 60, 1000, BadFrame},
	} {
		frame := slices.Clip(bytes.Clone(good[:n]))
		binary.LittleEndian.PutUint32(frame[c.at:], c.to)
		if list, s := DecodeSelectCall(frame, nil); s != c.want || len(list) != 0 {
			t.Errorf("%s: %v, want %v", c.name, s, c.want)
		}
	}
	for i := range n {
		if _, s := DecodeSelectCall(slices.Clip(bytes.Clone(good[:i])), nil); s != BadFrame {
			t.Errorf("cut at %d of %d: %v", i, n, s)
		}
	}
}

func TestInputThatDoesNotFit(t *testing.T) {
	arena := make([]byte, 1<<10)
	for name, err := range map[string]error{
		"state over its room": second(EncodeSelectCall(arena, Call{State: make([]byte, 5), Room: 4}, nil)),
		"room over the limit": second(EncodeSelectCall(arena, Call{Room: MaxState + 1}, nil)),
		"columns too short":   second(EncodePartitionCall(arena, Call{}, policies.Workload{Flow: policies.Flow{Edges: []policies.Tokens{0}}})),
		"two models": second(EncodeGuardCall(arena, Call{}, Change{
			Now: policies.Plan{Model: "a", Stages: make([]policies.Stage, 1)}, Next: policies.Plan{Model: "b"}})),
	} {
		if err != ErrInput {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ int, err error) error { return err }

func TestState(t *testing.T) {
	arena := make([]byte, 1<<10)
	n := testkit.Must(EncodeOutlierCall(arena, Call{State: []byte("abc"), Room: 16}, 5, 3))
	frame := arena[:n]
	ctx, s := DecodeContext(frame)
	if s != OK || string(ctx.State[:ctx.Length]) != "abc" {
		t.Fatalf("%+v, %v", ctx, s)
	}
	SetState(frame, copy(ctx.State, "a longer state"))
	if state, err := DecodeState(frame, 16); err != nil || string(state) != "a longer state" {
		t.Errorf("%q, %v", state, err)
	}
	if _, err := DecodeState(frame, 10); err != ErrOutput {
		t.Errorf("a state over the room that was given: %v", err)
	}
	SetState(frame, 100)
	if state, err := DecodeState(frame, 16); err != nil || len(state) != 16 {
		t.Errorf("a length beyond the room: %d, %v", len(state), err)
	}
}

func TestCallPathDoesNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	s := &source{random(3, 2000)}
	arena, out := make([]byte, 1<<14), make([]policies.Bid, 0, 64)
	peers, seqs := make([]policies.Candidate, 0, 64), make([]policies.Sequence, 0, 64)
	bids, ask, arrival, border := sixteen(), s.ask(), s.arrival(), s.border()
	var w policies.Workload
	work := s.workload()
	for name, call := range map[string]func(){
		"bid-select": func() {
			n, _ := EncodeSelectCall(arena, Call{}, bids)
			out, _ = DecodeSelectCall(arena[:n], out)
			if i, err := DecodeSelectResult(EncodeSelectResult(3), len(out)); i != 3 || err != nil {
				t.Fatal(i, err)
			}
		},
		"bid-quote": func() {
			n, _ := EncodeQuoteCall(arena, Call{}, ask)
			DecodeQuoteCall(arena[:n])
			DecodeQuoteResult(arena[:n], EncodeQuoteResult(arena[:n], policies.Bid{}, true))
		},
		"outlier": func() {
			n, _ := EncodeOutlierCall(arena, Call{}, 5, 3)
			DecodeOutlierCall(arena[:n])
			DecodeOutlierResult(arena[:n], EncodeOutlierResult(arena[:n], 2), 5)
		},
		"place": func() {
			n, _ := EncodePlaceCall(arena, Call{}, arrival)
			a, _ := DecodePlaceCall(arena[:n], peers)
			DecodePlaceResult(EncodePlaceResult(a, ""), arrival)
		},
		"refine": func() {
			n, _ := EncodeRefineCall(arena, Call{}, border)
			_, seqs, _ = DecodeRefineCall(arena[:n], seqs)
			DecodeRefineResult(arena[:n], EncodeRefineResult(arena[:n], 2), border)
		},
		"partition, to the guest": func() {
			n, _ := EncodePartitionCall(arena, Call{}, work)
			DecodePartitionCall(arena[:n], &w)
		},
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 && name != "partition, to the guest" || n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// sixteen returns the sixteen bids of the benchmarks.
func sixteen() []policies.Bid {
	var bids []policies.Bid
	for i := range 16 {
		bids = append(bids, policies.Bid{From: policies.ReplicaID("replica-" + string(rune('a'+i))), Load: policies.Tokens(i*7919%16000 + 1), Start: policies.Micros(1000 - i)})
	}
	return bids
}

// TestGuestsStaySmall checks the imports of the package as modules are built, because every guest links it.
func TestGuestsStaySmall(t *testing.T) {
	allowed := []string{"math", "unsafe", "github.com/cascadeinfer/cascade/policies"}
	guest := build.Default
	guest.GOOS, guest.GOARCH = "wasip1", "wasm"
	for _, path := range testkit.Must(guest.ImportDir(".", 0)).Imports {
		if !slices.Contains(allowed, path) {
			t.Errorf("guests import %s", path)
		}
	}
}

func BenchmarkFrame(b *testing.B) {
	arena, bids := make([]byte, 1<<14), sixteen()
	out := make([]policies.Bid, 0, 16)
	n, _ := EncodeSelectCall(arena, Call{}, bids)
	ask := QuoteArgs{policies.Occupancy{Capacity: 100_000, Held: 5000, Throughput: 1_000_000}, policies.Migration{Request: "replica-a/17", Length: 5000, Cause: policies.Growth}}
	m, _ := EncodeQuoteCall(arena[8192:], Call{}, ask)
	quote := arena[8192:][:m]
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"select16/put", func() { EncodeSelectCall(arena, Call{ID: 7}, bids) }},
		{"select16/get", func() { out, _ = DecodeSelectCall(arena[:n], out) }},
		{"select16/take", func() { DecodeSelectResult(Result(OK, 3), 16) }},
		{"quote/put", func() { EncodeQuoteCall(quote, Call{ID: 7}, ask) }},
		{"quote/get", func() { DecodeQuoteCall(quote) }},
		{"quote/answer+take", func() { DecodeQuoteResult(quote, EncodeQuoteResult(quote, policies.Bid{Load: 5}, true)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.run()
			}
		})
	}
}

// TestPlaceBefore15 decodes the arrival of a host of ABI 1.4, whose records say nothing of the requests that
// run.
func TestPlaceBefore15(t *testing.T) {
	frame := make([]byte, 1024)
	s := frameShape{kind: Place, args: placeArgs, size: siteSize0, count: 2}
	p, n, err := s.writeTo(frame, Call{})
	testkit.NoError(t, err)
	put64(p.record(1)[24:], 7)
	a, status := DecodePlaceCall(frame[:n], nil)
	if status != OK || len(a.Peers) != 1 || a.Peers[0].Load != 7 || a.Peers[0].Running != 0 || a.Own.Running != 0 {
		t.Errorf("%+v, %v", a, status)
	}
}

package cmd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestHopsKeepTheText migrates a request through four engines, back to the first, and
// checks that the client's text is byte for byte that of a request that is not migrated.
// It covers both endpoints, and one and two ranks.
func TestHopsKeepTheText(t *testing.T) {
	fast := startReplicas(t, 1, 1, 4096, 1000)[0]
	for _, ranks := range []int{1, 2} {
		ss := startReplicas(t, 3, ranks, 4096, 2) // slow enough for the hops to finish before the text does
		for _, api := range []struct{ path, prompt, empty string }{
			{"/v1/completions", `"prompt":"Tell me of the harbor and the 龍"`, `"prompt":[]`},
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"Tell me of the harbor"}]`, `"messages":[]`},
		} {
			t.Run(fmt.Sprint(api.path, " ranks ", ranks), func(t *testing.T) {
				prompt := unmigrated(t, fast, api.path, api.prompt, 1).prompt
				var text strings.Builder
				var ids []uint32
				at, l := ss[0], ss[0].open(t, api.path, "leg#0", requestBody(api.prompt, 4000, ""))
				for hop, to := range []*replica{ss[1], ss[2], ss[0], ss[1], ss[2]} {
					id := fmt.Sprintf("%s/%d", t.Name(), hop)
					name := fmt.Sprintf("leg#%d", hop+1)
					l.read(t, 8)
					m := migrate(t, at, to, l.name, id)
					length := m.finish(t, m.freeze(t))
					l.read(t, length-prompt-len(ids)) // the tokens generated before the freeze
					if got := prompt + len(ids) + len(l.ids); got != length {
						t.Fatalf("hop %d: the client has %d ids, the engine froze at %d", hop, got, length)
					}
					left := 4096 - length // up to the context length, however long a hop took
					if hop == 4 {
						left = 20
					}
					next := to.open(t, api.path, name, requestBody(api.empty, left, fmt.Sprintf(`,"kv_transfer_params":{"cascade_reservation":%q,"cascade_prompt":%d}`, id, prompt)))
					if !next.read(t, 1) {
						t.Fatalf("hop %d: no token: %s", hop, next.refusal)
					}
					if err := at.blocks.Drop(t.Context(), l.name); err != nil {
						t.Fatal(err)
					}
					if l.read(t, toEnd) || l.ended {
						t.Error("a dropped leg ends with its marker")
					}
					l.close()
					text.WriteString(l.text.String())
					ids = append(ids, l.ids...)
					at, l = to, next
				}
				before := prompt + len(ids)
				l.read(t, toEnd)
				l.close()
				text.WriteString(l.text.String())
				ids = append(ids, l.ids...)
				whole := unmigrated(t, fast, api.path, api.prompt, len(ids))
				if text.String() != whole.text.String() || !slices.Equal(ids, whole.ids) {
					t.Errorf("migrated:\n%s\nunmigrated:\n%s", text.String(), whole.text.String())
				}
				if !l.ended || l.finish != "length" && l.finish != "" || l.prompt != before || l.cached != before-1 {
					t.Errorf("the last leg: ended %v, finish %q, prompt %d, cached %d, want prompt %d", l.ended, l.finish, l.prompt, l.cached, before)
				}
			})
		}
	}
}

// TestAFlippedByteShows checks that one flipped byte in the copied blocks changes the text.
func TestAFlippedByteShows(t *testing.T) {
	fast := startReplicas(t, 1, 1, 4096, 1000)[0]
	ss := startReplicas(t, 2, 2, 4096, 2)
	const prompt = `"prompt":"once upon a time"`
	given := unmigrated(t, fast, "/v1/completions", prompt, 1).prompt
	for _, flip := range []bool{false, true} {
		for region := range 2 {
			name := fmt.Sprint("leg", flip, region)
			l := ss[0].open(t, "/v1/completions", name, requestBody(prompt, 3000, ""))
			l.read(t, 20)
			m := &migration{from: ss[0], to: ss[1], leg: name, reservation: name}
			if flip {
				m.spoil = func(memory *transport.Memory, dst []uint32) { memory.RegionBytes(dst[0], region)[3] ^= 1 }
			}
			m.round(t)
			length := m.finish(t, m.freeze(t))
			l.read(t, length-given)
			next := ss[1].adopt(t, name, 20)
			next.read(t, toEnd)
			got := append(l.ids, next.ids...)
			if same := slices.Equal(got, unmigrated(t, fast, "/v1/completions", prompt, len(got)).ids); same == flip {
				t.Errorf("a flipped byte: %v; the same text: %v", flip, same)
			}
			l.close()
			next.close()
		}
	}
}

// TestIDsContinueAText checks that both endpoints continue a text from its token IDs alone,
// without messages.
func TestIDsContinueAText(t *testing.T) {
	ss := startReplicas(t, 2, 1, 4096, 100)
	whole := unmigrated(t, ss[0], "/v1/completions", `"prompt":[5,6,7]`, 80)
	ids, err := json.Marshal(append([]uint32{5, 6, 7}, whole.ids[:40]...))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ path, prompt, more string }{
		{"/v1/completions", `"prompt":` + string(ids), ""},
		{"/v1/chat/completions", `"messages":[]`, `,"kv_transfer_params":{"prompt_token_ids":` + string(ids) + `}`},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":""}]`, `,"kv_transfer_params":{"prompt_token_ids":` + string(ids) + `}`},
	} {
		l := ss[1].open(t, x.path, "l", requestBody(x.prompt, 40, x.more))
		l.read(t, toEnd)
		l.close()
		if !slices.Equal(l.ids, whole.ids[40:]) || l.prompt != 43 {
			t.Errorf("%s: %v, want %v; %d prompt tokens; %s", x.path, l.ids, whole.ids[40:], l.prompt, l.refusal)
		}
	}
}

// TestCharacterMigratesWhole migrates a request in the middle of a character. It thaws
// and freezes the request until it stops at such a place.
func TestCharacterMigratesWhole(t *testing.T) {
	fast, ss := startReplicas(t, 1, 1, 4096, 1000)[0], startReplicas(t, 2, 1, 4096, 1)
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 4000
	for attempt := range 5 {
		name := fmt.Sprint("leg", attempt)
		l := ss[0].open(t, "/v1/completions", name, requestBody(`"prompt":[1,2,3]`, tokens, ""))
		defer l.close()
		l.read(t, 1)
		inside := false
		var at blocks.Table
		for !inside && at.Length < 3+tokens-20 {
			testkit.NoError(t, ss[0].blocks.Thaw(t.Context(), name))
			at, err = ss[0].blocks.Freeze(t.Context(), name, 3)
			testkit.NoError(t, err)
			var d model.Decoder
			for _, id := range at.IDs {
				inside = len(d.Append(nil, v.Piece(model.Token(id)))) == 0
			}
		}
		if !inside {
			continue
		}
		m := migrate(t, ss[0], ss[1], name, name)
		length := m.finish(t, m.freeze(t))
		l.read(t, length-3)
		next := ss[1].adopt(t, name, 20)
		defer next.close()
		next.read(t, toEnd)
		whole := unmigrated(t, fast, "/v1/completions", `"prompt":[1,2,3]`, length-3+20)
		if got, want := l.text.String()+next.text.String(), whole.text.String(); got != want || strings.Contains(want, "\ufffd") {
			t.Errorf("migrated:\n%s\nunmigrated:\n%s", got, want)
		}
		return
	}
	t.Error("the request was never caught inside a character")
}

// TestEngineComesBack checks that the client finds an engine again after it was restarted,
// and that memory mapped before can still be accessed.
func TestEngineComesBack(t *testing.T) {
	s := startReplicas(t, 1, 1, 4096, 100)[0]
	m, err := transport.HoldHostMemory(s.blocks)
	testkit.NoError(t, err)
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); err != nil {
		t.Fatal(err)
	}
	s.stop()
	testkit.WaitFor(t, "the loss of the memory", func() bool { _, ok := s.blocks.Memory(); return !ok })
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); !errors.Is(err, blocks.ErrUnavailable) {
		t.Error(err)
	}
	m.RegionBytes(0, 0)[0]++ // the memory outlives the engine
	m.Release()
	testkit.WaitFor(t, "the release of the memory", func() bool { // Hold fails once the client has released the memory as well
		held := m.Hold()
		if held {
			m.Release()
		}
		return !held
	})
	s.start(t)
	if again, _ := s.blocks.Memory(); again == m {
		t.Error("the engine that came back has the old one's memory")
	}
	// The new engine does not know the reservation, which can be made again.
	if err := s.blocks.MarkFilled(t.Context(), "r", 0, []uint32{1}, 0); !errors.Is(err, blocks.ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); err != nil {
		t.Error(err)
	}
}

// TestBlocksErrors checks the errors for exhausted blocks and unknown requests.
func TestBlocksErrors(t *testing.T) {
	s := startReplicas(t, 1, 1, 4096, 1)[0]
	ctx := t.Context()
	for i := range 2 {
		if _, err := s.blocks.Reserve(ctx, fmt.Sprint(i), 4096); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.blocks.Reserve(ctx, "more", 64); !errors.Is(err, blocks.ErrFull) {
		t.Error(err)
	}
	testkit.NoError(t, s.blocks.Release(ctx, "1"))
	testkit.NoError(t, s.blocks.Release(ctx, "1"))
	if _, err := s.blocks.Table(ctx, "unknown", 0); !errors.Is(err, blocks.ErrNotFound) {
		t.Error(err)
	}
	var l *leg
	opened := make(chan error, 1)
	go func() {
		var err error
		l, err = s.tryOpen(ctx, "/v1/completions", "a", requestBody(`"prompt":[1,2,3]`, 4000, ""))
		opened <- err
	}()
	for { // until its prompt is computed
		_, err := s.blocks.Freeze(ctx, "a", 0)
		if err == nil {
			break
		}
		if !errors.Is(err, blocks.ErrNotFound) && !errors.Is(err, blocks.ErrNotComputed) {
			t.Fatal(err)
		}
	}
	testkit.NoError(t, <-opened)
	l.close()
	testkit.WaitFor(t, "the end of the request", func() bool { return errors.Is(s.blocks.Thaw(ctx, "a"), blocks.ErrNotFound) })
}

// stall migrates a request of n tokens, and returns the time and the bytes that the process allocated between the
// freeze and the first token at the target, which generates so many tokens.
func stall(t testing.TB, from, to *replica, name string, n, tokens int) (time.Duration, uint64) {
	t.Helper()
	l := from.open(t, "/v1/completions", name, requestBody(`"prompt":[`+strings.Repeat("7,8,9,", n/3)+`7]`, 100_000, ""))
	defer l.close()
	if !l.read(t, 1) {
		t.Fatal(l.refusal)
	}
	m := migrate(t, from, to, name, name)
	m.round(t) // so that the rest is equally small at any length
	last := m.freeze(t)
	before, start := allocated(), time.Now()
	m.finish(t, last)
	next := to.adopt(t, name, tokens)
	defer next.close()
	if !next.read(t, 1) {
		t.Fatal(next.refusal)
	}
	took, bytes := time.Since(start), allocated()-before
	l.close()
	next.read(t, toEnd)
	return took, bytes
}

// BenchmarkEngineStall measures the engines' part of a live migration, from the moment
// the request is frozen to the first token at the target: it must not grow with the
// length. The source is paced, so that it does not run ahead. So is the target, whose
// iteration of 10 µs is part of the result: without a pause it would generate all
// requested tokens and free their blocks before the client reads the first token.
func BenchmarkEngineStall(b *testing.B) {
	for _, n := range []int{256, 8192, 131_072} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			from, to := startReplicas(b, 1, 1, 1<<18, 20)[0], startReplicas(b, 1, 1, 1<<18, 1000)[0]
			var all []time.Duration
			for i := 0; b.Loop(); i++ {
				took, _ := stall(b, from, to, fmt.Sprint("leg", i), n, 300)
				all = append(all, took)
			}
			slices.Sort(all)
			b.ReportMetric(0, "ns/op") // of the whole migration
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// TestEngineStallAllocates checks that between the freeze and the first token at the target,
// neither the token IDs of the request nor any other data with an entry per token is
// copied. The process allocates some hundred kilobytes meanwhile (HTTP, engines, the
// runtime), so the lengths of the compared requests differ by far more: a byte for each
// token of the longer one is half a megabyte, a copy of its IDs two.
func TestEngineStallAllocates(t *testing.T) {
	const (
		short, long = 256, 1 << 19
		tries       = 8         // of each length, in turn; the minimum counts
		bound       = 256 << 10 // half a byte for each token
	)
	from, to := startReplicas(t, 1, 1, 1<<20, 20)[0], startReplicas(t, 1, 1, 1<<20, 1000)[0]
	least := map[int]uint64{short: math.MaxUint64, long: math.MaxUint64}
	for i := range tries {
		for n := range least {
			// One token: each further token generated before the measurement would allocate as well.
			_, bytes := stall(t, from, to, fmt.Sprint("leg", n, "#", i), n, 1)
			least[n] = min(least[n], bytes)
		}
	}
	t.Logf("bytes allocated from the freeze to the first token: %d of %d tokens, %d of %d", least[short], short, least[long], long)
	if least[long] > least[short]+bound {
		t.Errorf("%d bytes are allocated while a request of %d tokens is frozen, %d for one of %d", least[long], long, least[short], short)
	}
}

// allocated returns how many bytes the process has allocated so far, exactly: the cheaper
// runtime/metrics counts whole spans of many kilobytes.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

package cmd_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvport"
)

// TestCharacterMigratesWhole migrates a request in the middle of a character. It thaws
// and freezes the request until it stops at such a place.
func TestCharacterMigratesWhole(t *testing.T) {
	fast, ss := startReplicas(t, 1, 4096, 1000)[0], startReplicas(t, 2, 4096, 1)
	v, err := vocabulary()
	testkit.NoError(t, err)
	const tokens = 4000
	for attempt := range 5 {
		name := fmt.Sprint("leg", attempt)
		l := ss[0].open(t, name, requestBody(`[1,2,3]`, tokens, ""))
		defer l.close()
		l.read(t, 1)
		inside := false
		var at kvport.Table
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
		whole := unmigrated(t, fast, `[1,2,3]`, length-3+20)
		if got, want := l.text.String()+next.text.String(), whole.text.String(); got != want || strings.Contains(want, "\ufffd") {
			t.Errorf("migrated:\n%s\nunmigrated:\n%s", got, want)
		}
		return
	}
	t.Error("the request was never caught inside a character")
}

// stall migrates a request of n tokens, and returns the time and the bytes that the process allocated between the
// freeze and the first token at the target, which generates so many tokens.
func stall(t testing.TB, from, to *replica, name string, n, tokens int) (time.Duration, uint64) {
	t.Helper()
	l := from.open(t, name, requestBody(`[`+strings.Repeat("7,8,9,", n/3)+`7]`, 100_000, ""))
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
			from, to := startReplicas(b, 1, 1<<18, 20)[0], startReplicas(b, 1, 1<<18, 1000)[0]
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
	from, to := startReplicas(t, 1, 1<<20, 20)[0], startReplicas(t, 1, 1<<20, 1000)[0]
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

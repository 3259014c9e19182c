package report

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// reuseResults are a result whose answers name cached tokens, one whose engines do, one of which nothing is
// known, and one of a trace without prefixes.
func reuseResults() []replay.Result {
	latency := replay.Latency{TTFT: replay.Summary{P50: 0.2, P95: 1, P99: 3}, TPOT: replay.Summary{Mean: 0.03, P99: 0.05}, E2E: replay.Summary{P50: 4, P99: 9}}
	slo := replay.SLO{TTFT: 0.1, TPOT: 0.01}
	return []replay.Result{
		{Name: "usage", Speed: 1, Engine: replay.Metrics{Latency: latency}, Attainment: &replay.Attainment{SLO: slo, Shares: [...]float64{0.25, 0.5, 1}},
			Reuse: &replay.Reuse{Source: replay.FromUsage, HitRate: 0.3, Ideal: 0.4, OfIdeal: 0.75, LoadCV: 0.2}},
		{Name: "engines", Speed: 1, Void: "void for a reason", Reuse: &replay.Reuse{Source: replay.FromEngines, HitRate: 0.1, Ideal: 0.4, OfIdeal: 0.25, LoadCV: -1}},
		{Name: "silent", Speed: 1, Reuse: &replay.Reuse{LoadCV: 1.5}},
		{Name: "no prefixes", Speed: 1},
	}
}

func TestReuseTables(t *testing.T) {
	var out bytes.Buffer
	for _, table := range []Table{Reuse(reuseResults()), Attainment(reuseResults())} {
		testkit.NoError(t, table.Text(&out))
	}
	testkit.CompareGolden(t, "testdata/reuse.txt", out.Bytes())
	none := reuseResults()[3:]
	if n := len(Reuse(none).Rows) + len(Attainment(none).Rows); n > 0 {
		t.Errorf("%d rows for a result that has neither", n)
	}
	if _, err := ReusePicture(none); !errors.Is(err, ErrNoData) {
		t.Errorf("%v", err)
	}
}

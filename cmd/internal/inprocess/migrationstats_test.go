package inprocess

import (
	"strings"
	"testing"
)

// TestMigrationStatsText checks what a comparison prints of a run's migrations.
func TestMigrationStatsText(t *testing.T) {
	for _, c := range []struct {
		stats MigrationStats
		want  string
	}{
		{MigrationStats{}, ""},
		{
			MigrationStats{
				Moved: map[string]uint64{"reprompt": 2, "live": 30}, Failed: map[string]uint64{"bids": 3},
				Causes: map[string]int{"growth": 31, "drain": 1}, Bytes: 4.2e9, Rescued: 1,
				StallP50: 0.002, StallP99: 0.0105, StallMax: 0.02,
			},
			"Requests that lost their engine: 1 continued at another one, 0 ended early.\n" +
				"Requests that migrated while their clients read: 30 live, 2 reprompt; the latest by cause: 31 growth, 1 drain." +
				" 4.2 GB of KV were copied; a request stalled for 2.0 ms (p50), 10.5 ms (p99), 20.0 ms at most." +
				" Failed migrations, whose requests continued where they were: 3 bids.\n",
		},
	} {
		var out strings.Builder
		if c.stats.Write(&out); out.String() != c.want {
			t.Errorf("%q, want %q", &out, c.want)
		}
	}
}

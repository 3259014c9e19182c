package inprocess

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// MigrationStats summarises the migrations of a fleet's run.
type MigrationStats struct {
	Moved  map[string]uint64 `json:"moved"`  // by path
	Failed map[string]uint64 `json:"failed"` // by reason; the request continued at its source
	Causes map[string]int    `json:"causes"` // of the latest ones that moved a request
	Bytes  int64             `json:"bytes"`  // KV bytes copied
	// Rescued and Lost count requests whose engine was lost: they resumed on another one, or ended early.
	Rescued uint64 `json:"rescued"`
	Lost    uint64 `json:"lost"`
	// StallP50, StallP99 and StallMax are of the latest migrations: how long a request generated no token, in seconds of
	// wall time.
	StallP50 float64 `json:"stall_p50_seconds"`
	StallP99 float64 `json:"stall_p99_seconds"`
	StallMax float64 `json:"stall_max_seconds"`
}

// MigrationStats sums the counts of all replicas.
func (f *Fleet) MigrationStats() MigrationStats {
	m := MigrationStats{Moved: map[string]uint64{}, Failed: map[string]uint64{}, Causes: map[string]int{}}
	var stalls []time.Duration
	for _, n := range f.replicas {
		one := n.migrator.Executor()
		if one == nil {
			continue // requests do not migrate
		}
		st := one.Stats()
		for method, n := range st.Sent {
			m.Moved[method] += n
		}
		for why, n := range st.Failed {
			m.Failed[why] += n
		}
		m.Bytes += st.Bytes
		m.Rescued += st.Rescued
		m.Lost += st.Lost
		for _, move := range one.Migrations() {
			if move.Role != "source" || move.State != "moved" {
				continue
			}
			m.Causes[move.Cause.String()]++
			if move.Stall > 0 {
				stalls = append(stalls, move.Stall)
			}
		}
	}
	if slices.Sort(stalls); len(stalls) > 0 {
		m.StallP50, m.StallP99 = stalls[len(stalls)/2].Seconds(), stalls[len(stalls)*99/100].Seconds()
		m.StallMax = stalls[len(stalls)-1].Seconds()
	}
	return m
}

// Write writes the sums as text.
func (m MigrationStats) Write(w io.Writer) {
	if m.Rescued+m.Lost > 0 {
		fmt.Fprintf(w, "Requests that lost their engine: %d continued at another one, %d ended early.\n", m.Rescued, m.Lost)
	}
	if len(m.Moved)+len(m.Failed) == 0 {
		return
	}
	fmt.Fprintf(w, "Requests that migrated while their clients read: %s; the latest by cause: %s.",
		formatCounts(m.Moved), formatCounts(m.Causes))
	if m.StallP50 > 0 {
		fmt.Fprintf(w, " %.1f GB of KV were copied; a request stalled for %.1f ms (p50), %.1f ms (p99), %.1f ms at most.",
			float64(m.Bytes)/1e9, m.StallP50*1e3, m.StallP99*1e3, m.StallMax*1e3)
	}
	if len(m.Failed) > 0 {
		fmt.Fprintf(w, " Failed migrations, whose requests continued where they were: %s.", formatCounts(m.Failed))
	}
	fmt.Fprintln(w)
}

// formatCounts returns counts in one line, the largest first.
func formatCounts[N uint64 | int](counts map[string]N) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return int(counts[b]) - int(counts[a])
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%d %s", counts[name], name)
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

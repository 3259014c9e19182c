package inprocess

import (
	"bufio"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// iterations is the metric that counts the iterations of an engine.
const iterations = "vllm:iteration_tokens_total_count"

// moment records the progress of a fleet and its streams. Its clock counts the engines' iterations,
// which all take equally long: on a busy host that clock also slows down, so that its measurements
// do not depend on the host.
type moment struct {
	clock  map[string]float64         // iterations by engine
	tokens map[string]policies.Tokens // tokens that the clients have received, by stream
}

// moment records the present progress of the fleet.
func (r *fleetHarness) moment() moment {
	r.T.Helper()
	m := moment{clock: make(map[string]float64), tokens: make(map[string]policies.Tokens)}
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		m.clock[n.ID] = r.iterations(n.Engine)
	}
	for _, f := range r.fronts {
		f.EachStream(func(s *frontend.Stream) bool {
			q := s.Request()
			m.tokens[q.ID] = q.Output
			return true
		})
	}
	return m
}

// iterations reads an engine's clock.
func (r *fleetHarness) iterations(engine string) float64 {
	r.T.Helper()
	resp, err := r.HTTP.Get(engine + "/metrics")
	testkit.NoError(r.T, err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); resp.StatusCode == http.StatusOK && lines.Scan(); {
		if series, value, _ := strings.Cut(lines.Text(), " "); strings.HasPrefix(series, iterations+"{") {
			n, err := strconv.ParseFloat(value, 64)
			testkit.NoError(r.T, err)
			return n
		}
	}
	r.T.Fatalf("%s/metrics: %s, and no %s", engine, resp.Status, iterations)
	return 0
}

// perToken returns, in ascending order, the time per token of each stream that ran from one moment
// to another, in iterations of the engine that was never idle.
func perToken(from, to moment) (out []float64) {
	passed := 0.0
	for id, n := range to.clock {
		passed = max(passed, n-from.clock[id])
	}
	for id, n := range to.tokens {
		if was, ok := from.tokens[id]; ok {
			out = append(out, passed/float64(max(n-was, 1)))
		}
	}
	slices.Sort(out)
	return out
}

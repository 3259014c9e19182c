package inprocess

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
)

// everything makes slow tests run in full, as "make test-all" does.
var everything = os.Getenv("CASCADE_TEST_ALL") != ""

// TestFlips moves boundaries and changes replicas' stages as fast as the data plane acknowledges,
// under requests of mixed size, plain and streamed. No request fails, the stage that the request's
// epoch assigns serves it, and a running stream stays where it is.
func TestFlips(t *testing.T) {
	flips, moves := 40, 8
	if everything {
		flips, moves = 5000, 100
	}
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 6, edit: func(f *config.Fleet) { f.Speed = 1 }})
		var load *traffic
		set := func(cut policies.Tokens, short int) {
			p := policies.Plan{Model: llm, Stages: stages([]policies.Tokens{cut, 4000}, ids(0, 1, 2, 3, 4)[:short], ids(0, 1, 2, 3, 4)[short:], ids(5))}
			p.Epoch = r.object.Epoch + 1
			load.expect(p)
			if got := r.plan(p.Stages...); got.Epoch != p.Epoch {
				t.Fatalf("stored as epoch %d, want %d: another process plans", got.Epoch, p.Epoch)
			}
		}
		r.plan(stages([]policies.Tokens{500, 4000}, ids(0, 1, 2), ids(3, 4), ids(5))...)

		// Streams on every stage continue from before the first flip until after the last.
		before := r.counts()
		var long []*live
		var bodies [][]byte
		for i := range 6 {
			body := prompt([]int{300, 8000, 40_000}[i%3]+i, 50_000)
			bodies = append(bodies, body)
			long = append(long, r.stream(body))
		}
		who := r.countsSince(before)
		load = newTraffic(r, 3, 2, 100, 100, 200, 200, 500, 500, 1000, 1000, 1900, 1900, 2100, 2100, 3000, 3000, 5000, 5000, 8000, 8000, 11_000, 15_900, 16_100, 220<<10)
		load.waitForRequests(20)
		for i := range flips {
			// The boundary crosses the sizes of the requests; every other plan also moves a
			// replica.
			set(policies.Tokens(20+(i*37)%3000), 1+(i*moves/flips)%4)
		}
		load.waitForRequests(20)
		load.stop()
		load.report()

		// The streams have not migrated: each front end has as many as before.
		for id, n := range who {
			if running := r.fronts[id].Status().Load; int64(running.Running+running.Waiting) != n {
				t.Errorf("%s had %d streams and now runs %d", id, n, running.Running+running.Waiting)
			}
		}
		grown := make([]int64, len(long))
		for i, s := range long {
			grown[i] = s.count.Load()
		}
		for i, s := range long {
			r.waitFor("a stream that goes on", func() bool { return s.count.Load() > grown[i] })
		}
		for i, s := range long {
			s.cancel()
			s.wait(t)
			want, err := load.oracle.text(withMaxTokens(bodies[i], 4*s.tokens+100))
			if err != nil {
				t.Fatal(err)
			}
			if s.failed != "" || !strings.HasPrefix(want, strings.TrimRight(s.text.String(), "\ufffd")) {
				t.Errorf("stream %d: error %q, or not what the model says, after %d events", i, s.failed, s.tokens)
			}
		}
		t.Logf("%d flips and %d moves while %d streams went on with %d events or more", flips, moves, len(long), grown[0])
	})
}

// withMaxTokens returns the body with another number of output tokens.
func withMaxTokens(body []byte, output int) []byte {
	const was = `"max_tokens":50000`
	return []byte(strings.Replace(string(body), was, `"max_tokens":`+strconv.Itoa(output), 1))
}

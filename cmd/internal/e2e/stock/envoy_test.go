package stock

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
)

// throughEnvoy is how many handoffs testThroughEnvoy must see.
const throughEnvoy = 10

// testThroughEnvoy drains each replica in turn while clients read streams through Envoy: they get the token ids of
// the engine itself. All streams of a round begin at one replica.
func testThroughEnvoy(t *testing.T, engines []*engine) {
	f := newFleet(t, engines, nil)
	for round, done := 0, 0; done < throughEnvoy; round++ {
		if round == throughEnvoy {
			t.Fatalf("%d handoffs in %d rounds", done, round)
		}
		from, to := f.file.Replicas[round%2].ID, f.file.Replicas[1-round%2].ID
		f.command("drain", to, "--wait", "--timeout", harness.Patience.String())
		var streams []*harness.Stream
		for i, n := range []int{100, 300, 700, 1500} {
			streams = append(streams, f.startIDs(4*round+i, n))
		}
		f.WaitForEvents(streams, 21)
		f.command("drain", "--undo", to)
		f.AwaitServing(to)
		f.command("drain", from, "--wait", "--timeout", harness.Patience.String())
		f.command("drain", "--undo", from)
		for _, s := range streams {
			f.requireIDs(s, engines[0])
		}
		f.AwaitServing(from)
		done = 0
		for _, m := range f.migrations() {
			if m.State == "done" && m.Method == "handoff" {
				done++
			}
		}
	}
	harness.Tally(f.T, f.migrations())
}

// startIDs starts a stream of token ids through Envoy, with a prompt of so many ids.
func (f *fleet) startIDs(seed, n int) *harness.Stream {
	return f.Start(f.DataPlane, completion{output: 1000}.body(map[string]any{"prompt": randomIDs(uint64(1000+seed), n), "return_token_ids": true}))
}

// requireIDs waits for the end of a stream, and compares its ids with those of an engine.
func (f *fleet) requireIDs(s *harness.Stream, e *engine) {
	f.T.Helper()
	want := f.Start(e.URL, s.Body)
	for _, s := range []*harness.Stream{s, want} {
		if s.Wait(); s.Err != nil || !s.Done || s.Failed != "" {
			f.T.Errorf("the stream ends after %d ids with %v, error event %q, done %v", len(s.IDs), s.Err, s.Failed, s.Done)
		}
	}
	if !slices.Equal(s.IDs, want.IDs) {
		f.T.Errorf("the client reads %d ids\n%v\nwant %d\n%v", len(s.IDs), s.IDs, len(want.IDs), want.IDs)
	}
}

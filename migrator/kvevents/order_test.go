package kvevents

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestScenarios runs testdata/subscriber/*.txt (-rewrite rewrites the expected output). The commands:
//
//	new replays=true
//	connect, disconnect
//	live 3 4 5          batches that are published
//	answer 3 4          batches of the replay
//	end, fail           of the replay
//	quiet
//	state
//	counts
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata/subscriber", func(*testing.T) testkit.Player {
		o := &order{replays: true}
		return func(words []string) ([]string, error) {
			var out []todo
			switch words[0] {
			case "new":
				o = &order{replays: words[1] == "replays=true"}
			case "connect":
				out = o.connect()
			case "disconnect":
				o.disconnect()
			case "live", "answer":
				for _, w := range words[1:] {
					seq, err := strconv.ParseUint(w, 10, 64)
					if err != nil {
						return nil, err
					}
					if words[0] == "live" {
						out = append(out, o.receive(seq, nil)...)
					} else {
						out = append(out, o.answer(seq, nil)...)
					}
				}
			case "end":
				out = o.end()
			case "fail":
				out = o.fail()
			case "quiet":
				out = o.quiet()
			case "state":
				return []string{fmt.Sprintf("synced %v, %d wait", o.synced, len(o.waiting))}, nil
			case "counts":
				c := o.counts
				return []string{fmt.Sprintf("applied %d, duplicates %d, gaps %d, lost %d, restarts %d, replays %d of which %d failed; synced %v", c.applied, c.duplicates, c.gaps, c.lost, c.restarts, c.replays, c.failed, o.synced)}, nil
			default:
				return nil, fmt.Errorf("no command %q", words[0])
			}
			var lines []string
			for _, d := range out {
				switch d.action {
				case applyBatch:
					lines = append(lines, fmt.Sprintf("apply %d", d.seq))
				case clearIndex:
					lines = append(lines, "clear")
				case askReplay:
					lines = append(lines, fmt.Sprintf("ask from %d", d.seq))
				}
			}
			return lines, nil
		}
	})
}

// engine is a publisher that loses live batches and answers, keeps a limited number of batches,
// and restarts. It is the oracle: it knows which batches it has published in this run.
type engine struct {
	rng      *rand.Rand
	run      int
	next     uint64
	inFlight []numbered // live batches that the subscriber has not read
	replay   []numbered // the answers that it has not read
	asked    bool
	ends     bool // whether the replay comes to its end
}

const keptBatches = 5

func (e *engine) name(seq uint64) []byte { return fmt.Append(nil, e.run, "/", seq) }

// TestOrder runs random losses, restarts and replays. Whatever is lost, batches are applied in
// order, once, and of one run; and when all that was lost can be replayed, none is missing once
// the engine is quiet.
func TestOrder(t *testing.T) {
	recovered, lossy := 0, 0
	for seed := range uint64(testkit.Size(300, 5000)) {
		rng := rand.New(rand.NewPCG(seed, 18))
		o, e := &order{replays: true}, &engine{rng: rng}
		var applied []numbered
		do := func(out []todo) {
			// What is known counts only if nothing in it is known to be missing, and probes delay nothing.
			if o.synced && (o.replay == fill || len(o.waiting) > 0) {
				t.Fatalf("seed %d: %d batches wait for replay %v, and what is known counts", seed, len(o.waiting), o.replay)
			}
			for _, d := range out {
				switch d.action {
				case clearIndex:
					applied = nil
				case applyBatch:
					if n := len(applied); n > 0 && applied[n-1].seq >= d.seq {
						t.Fatalf("seed %d: batch %d is applied after %d", seed, d.seq, applied[n-1].seq)
					}
					applied = append(applied, numbered{d.seq, d.payload})
				case askReplay:
					e.replay, e.asked, e.ends = nil, true, rng.IntN(4) > 0
					from := uint64(max(int64(d.seq), int64(e.next)-keptBatches))
					for seq := from; seq < e.next && (e.ends || rng.IntN(10) > 0); seq++ {
						e.replay = append(e.replay, numbered{seq, e.name(seq)})
					}
				}
			}
		}
		step := func() {
			switch k := rng.IntN(40); {
			case k == 0: // restart, which ends the connection
				e.run++
				e.next, e.inFlight, e.replay, e.asked = 0, nil, nil, false
				o.disconnect()
				do(o.connect())
			case k < 12:
				if rng.IntN(5) > 0 {
					e.inFlight = append(e.inFlight, numbered{e.next, e.name(e.next)})
				}
				e.next++
			case k < 26 && len(e.inFlight) > 0:
				b := e.inFlight[0]
				e.inFlight = e.inFlight[1:]
				do(o.receive(b.seq, b.payload))
			case len(e.replay) > 0:
				b := e.replay[0]
				e.replay = e.replay[1:]
				do(o.answer(b.seq, b.payload))
			case e.asked:
				if e.asked = false; e.ends {
					do(o.end())
				} else {
					do(o.fail())
				}
			case k == 39:
				do(o.quiet())
			}
		}
		do(o.connect())
		for range 400 {
			step()
		}
		// Nothing is published any more, and replays come to their end.
		for len(e.inFlight) > 0 {
			do(o.receive(e.inFlight[0].seq, e.inFlight[0].payload))
			e.inFlight = e.inFlight[1:]
		}
		for round := 0; ; round++ {
			for e.asked {
				e.ends = true
				for len(e.replay) > 0 {
					b := e.replay[0]
					e.replay = e.replay[1:]
					do(o.answer(b.seq, b.payload))
				}
				e.asked = false
				do(o.end())
			}
			if round == 2 {
				break
			}
			do(o.quiet())
		}
		if !o.synced || o.replay != noReplay || o.next != e.next || len(o.waiting) > 0 {
			t.Fatalf("seed %d: next is %d after %d batches, synced %v, %d wait", seed, o.next, e.next, o.synced, len(o.waiting))
		}
		for _, b := range applied {
			if !slices.Equal(b.payload, e.name(b.seq)) {
				t.Fatalf("seed %d: batch %d is %q, of another run", seed, b.seq, b.payload)
			}
		}
		if missing := e.next - uint64(len(applied)); missing > 0 && o.counts.lost == 0 {
			t.Fatalf("seed %d: %d of %d batches are missing, and none counts as lost", seed, missing, e.next)
		} else if missing > 0 {
			lossy++
		} else {
			recovered++
		}
	}
	if recovered < 50 || lossy < 5 {
		t.Errorf("all was recovered %d times, something was lost %d times: the test proves too little", recovered, lossy)
	}
}

// TestWaitingIsBounded checks that a replay that never ends does not collect live batches
// without end.
func TestWaitingIsBounded(t *testing.T) {
	for _, size := range []int{0, 1 << 20} {
		o := &order{replays: true}
		o.connect()
		applied := 0
		for seq := range uint64(3 * maxWaiting) {
			applied += len(o.receive(seq, make([]byte, size)))
			if len(o.waiting) > maxWaiting || o.bytes > maxWaitingBytes {
				t.Fatalf("%d batches of %d bytes wait", len(o.waiting), o.bytes)
			}
			if applied > 0 {
				break
			}
		}
		if applied == 0 || o.replay != noReplay || !o.synced {
			t.Errorf("batches of %d bytes: %d are applied, replay %v", size, applied, o.replay)
		}
	}
}

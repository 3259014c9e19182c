package move

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// FuzzStep passes arbitrary events in arbitrary order to one machine, as no driver
// would. It must not panic, violate Check or end anything twice, and must become idle.
func FuzzStep(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 4, 1, 0, 0, 4, 5, 0, 0, 5, 0, 0, 4, 6, 0, 0, 5, 4, 7, 1, 0})
	f.Add([]byte{2, 1, 0, 0, 4, 2, 1, 0, 7, 1, 0, 0, 4, 4, 1, 1, 8, 1, 1, 0, 11, 1, 1, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		m := newMachine(Limits{Self: "a"})
		open := map[bidask.Deal]bool{}
		frozen := map[bidask.Deal]bool{}
		now := policies.Micros(0)
		step := func(ev Event) {
			ev.Now = now
			for _, a := range m.Step(ev) {
				switch a.Kind {
				case Completed, Failed:
					if !open[a.Deal] {
						t.Fatalf("%v of %v, which is not open", a.Kind, a.Deal)
					}
					delete(open, a.Deal)
				case Freeze:
					frozen[a.Deal] = true
				case Thaw, Drop:
					if !frozen[a.Deal] {
						t.Fatalf("%v of %v, which is not frozen", a.Kind, a.Deal)
					}
					delete(frozen, a.Deal)
				}
			}
			testkit.NoError(t, m.Check())
		}
		replicas := []policies.ReplicaID{"a", "b", "c", ""}
		engine := KVFormat{Fingerprint: 7, BlockTokens: 16}
		for len(script) >= 4 {
			kind, a, b, c := script[0], script[1], script[2], script[3]
			script = script[4:]
			now += policies.Micros(c>>4) * 100 * policies.Millisecond
			move := bidask.Deal{Seller: replicas[a&3], Number: uint64(a >> 2 & 3)}
			peer := replicas[b&3]
			span := Span{From: uint64(b>>2) * 16, Computed: uint64(b>>2)*16 + uint64(c&15)*16, Length: uint64(b>>2)*16 + uint64(c&15)*16 + 1}
			ev := Event{Kind: EventKind(kind & 15), Deal: move, Peer: peer, Engine: engine, Transports: []string{"shm"}, Round: uint32(b >> 2), Span: span,
				Failure: Failure(b >> 2), Answer: Kind(b >> 2), Epoch: policies.Epoch(c),
				Request: Request{ID: string("pqrs"[a>>4&3]), FrontEnd: replicas[b>>4&3], Epoch: policies.Epoch(c), Length: 100},
				Message: Message{Kind: Kind(a >> 4), From: peer, To: "a", Deal: move, Round: uint32(b >> 2), Failure: Failure(c), Request: "p", FrontEnd: replicas[c&3],
					Mode: Mode(c & 3), Engine: engine, VersionMin: 1, VersionMax: 1, Transports: []string{"shm"}, Span: span}}
			switch {
			case ev.Kind == ExportStarted && move.Seller == "a" && !open[move], ev.Kind == ImportStarted && move.Seller != "a" && !open[move]:
				open[move] = true
			}
			step(ev)
		}
		// All that is left are sources that wait for their fronts, and fronts that
		// wait for their drivers.
		for range 10_000 {
			at, ok := m.Next()
			if !ok {
				break
			}
			now = max(now, at)
			step(Event{Kind: Ticked})
			if now > 600*policies.Second {
				for _, r := range replicas {
					step(Event{Kind: Gone, Peer: r})
				}
			}
		}
		if at, ok := m.Next(); ok {
			t.Fatalf("still something to do at %v", millis(at))
		}
		for move := range open {
			if move.Seller != "a" {
				t.Fatalf("%v is open", move)
			}
		}
	})
}

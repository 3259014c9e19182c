package fleet

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/store"
)

func goodMove(n int, state string) *api.Migration {
	return &api.Migration{
		Id: fmt.Sprint("r0/", n), Request: "r2/1", Cause: "growth", FrontEnd: "r2", From: "r0", To: "r1", Method: "live", Transport: "shm",
		State: state, Rounds: 2, Tokens: 700, Bytes: 1 << 20, StallSeconds: 0.0012, Seconds: 0.5, StartedUnixMicros: start.UnixMicro(),
	}
}

func TestDecodeMoves(t *testing.T) {
	m := goodReport()
	m.Migrations = []*api.Migration{goodMove(1, "pull"), goodMove(2, MoveDone)}
	m.Residents, m.Pinned, m.PinnedSeconds, m.Streams = 5, 2, 30, 9
	m.Proposal = &api.Proposal{Epoch: 3, Low: 16, Boundary: 20}
	r, err := Decode(m)
	if err != nil || r.Note != "" || len(r.Moves) != 2 || r.Settling != (Settling{5, 2, 30, 9}) || r.Proposal != (Vote{3, 16, 20}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := r.Moves[1]; got.ID != "r0/2" || got.Bytes != 1<<20 || got.Stall != 0.0012 || !got.Started.Equal(start) || !got.Ended() || r.Moves[0].Ended() {
		t.Errorf("%+v", got)
	}
	for name, edit := range map[string]func(*api.Migration){
		"no id":           func(m *api.Migration) { m.Id = "" },
		"another's id":    func(m *api.Migration) { m.Id = "r1/4" },
		"a like id":       func(m *api.Migration) { m.Id = "r04/4" },
		"not involved":    func(m *api.Migration) { m.From = "r1" },
		"no request":      func(m *api.Migration) { m.Request = "" },
		"no state":        func(m *api.Migration) { m.State = "" },
		"long cause":      func(m *api.Migration) { m.Cause = strings.Repeat("c", 65) },
		"long id":         func(m *api.Migration) { m.Id += strings.Repeat("1", 1024) },
		"long to":         func(m *api.Migration) { m.To = strings.Repeat("r", 257) },
		"negative bytes":  func(m *api.Migration) { m.Bytes = -1 },
		"too many bytes":  func(m *api.Migration) { m.Bytes = math.MaxInt64 },
		"negative tokens": func(m *api.Migration) { m.Tokens = -1 },
		"stall NaN":       func(m *api.Migration) { m.StallSeconds = math.NaN() },
		"seconds":         func(m *api.Migration) { m.Seconds = math.Inf(1) },
		"rounds":          func(m *api.Migration) { m.Rounds = math.MaxUint32 },
	} {
		bad := goodMove(1, MoveDone)
		edit(bad)
		m := goodReport()
		m.Migrations = []*api.Migration{bad, goodMove(2, MoveDone)}
		if r, err := Decode(m); err != nil || len(r.Moves) != 1 || r.Moves[0].ID != "r0/2" || !strings.Contains(r.Note, "moves") {
			t.Errorf("%s: %+v, %v", name, r.Moves, err)
		}
	}
	for name, edit := range map[string]func(*api.Migration){
		"a front rescues": func(m *api.Migration) { m.FrontEnd, m.From = "r0", "r9" },
		"a long reason":   func(m *api.Migration) { m.Reason = strings.Repeat("ä", 400) },
		"no clock":        func(m *api.Migration) { m.StartedUnixMicros = math.MaxInt64 },
	} {
		fine := goodMove(1, MoveAborted)
		edit(fine)
		m := goodReport()
		m.Migrations = []*api.Migration{fine}
		if r, err := Decode(m); err != nil || len(r.Moves) != 1 || len(r.Moves[0].Why) > maxWhy || r.Moves[0].Started.Year() > 9999 {
			t.Errorf("%s: %+v, %v", name, r.Moves, err)
		}
	}
	m = goodReport()
	for i := range 70 {
		m.Migrations = append(m.Migrations, goodMove(i, "pull"))
	}
	m.Pinned, m.PinnedSeconds = math.MaxUint32, math.NaN()
	m.Proposal = &api.Proposal{Low: -1, Boundary: 5}
	if r, err := Decode(m); err != nil || len(r.Moves) != maxMoves || r.Settling.Pinned != maxCount || r.Settling.PinnedSeconds != 0 || r.Proposal != (Vote{}) ||
		!strings.HasSuffix(r.Note, ": pinned, pinned_seconds, moves") {
		t.Errorf("%d moves, %+v, note %q, %v", len(r.Moves), r.Settling, r.Note, err)
	}
}

func movesOf(t *testing.T, list ...*api.Migration) []Move {
	t.Helper()
	moves, dropped := decodeMoves("r0", list)
	if dropped > 0 {
		t.Fatal("a move of the test is not valid")
	}
	return moves
}

// TestMoveLog: later states replace earlier ones, final ones stay, and each
// move is counted once.
func TestMoveLog(t *testing.T) {
	var l moveLog
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	l.take(at(0), movesOf(t, goodMove(1, "offer"), goodMove(2, "offer")))
	if l.running(at(-1)) != 2 || len(l.sums()) != 0 {
		t.Errorf("%d running", l.running(at(-1)))
	}
	l.take(at(1), movesOf(t, goodMove(1, MoveDone)))
	l.take(at(2), movesOf(t, goodMove(1, "pull"), goodMove(1, MoveAborted), goodMove(1, MoveDone)))
	odd := goodMove(3, MoveAborted)
	odd.Cause, odd.Method = "a new word", "another"
	l.take(at(3), movesOf(t, odd))
	got := l.newest(time.Time{}, 10)
	if len(got) != 3 || got[0].ID != "r0/3" || got[1].ID != "r0/2" || got[2].ID != "r0/1" || got[2].State != MoveDone || !got[2].Told.Equal(at(1)) {
		t.Errorf("%+v", got)
	}
	if got := l.newest(at(0), 10); len(got) != 2 {
		t.Errorf("since the first: %+v", got)
	}
	if got := l.newest(time.Time{}, 1); len(got) != 1 || got[0].ID != "r0/3" {
		t.Errorf("the newest: %+v", got)
	}
	sums := l.sums()
	if len(sums) != 2 || sums[0].MoveKind != (MoveKind{"growth", "live", MoveDone}) || sums[0].Count != 1 || sums[0].Bytes != 1<<20 ||
		sums[0].Stall.Count != 1 || sums[0].Stall.Buckets[1] != 0 || sums[0].Stall.Buckets[2] != 1 ||
		sums[1].MoveKind != (MoveKind{"other", "other", MoveAborted}) || sums[1].Stall.Count != 0 {
		t.Errorf("%+v", sums)
	}
	if n := l.running(at(0)); n != 0 {
		t.Errorf("%d running that nobody tells of any more", n)
	}
	for i := range 600 {
		l.take(at(4), movesOf(t, goodMove(10+i, MoveDone)))
	}
	if got := l.newest(time.Time{}, 1000); len(got) != maxLog || len(l.byID) != maxLog || got[0].ID != "r0/609" {
		t.Errorf("%d moves, %d names", len(got), len(l.byID))
	}
	if sums := l.sums(); sums[0].Count != 601 {
		t.Errorf("%d counted", sums[0].Count)
	}
}

// TestFleetTellsMoves: what a report tells is there for operators.
func TestFleetTellsMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		s := h.open()
		if err := s.Send(&api.LoadReport{Replica: "r0", Model: "m", EngineReady: true, Residents: 4, Migrations: []*api.Migration{goodMove(1, MoveDone), goodMove(2, "pull")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		if got := h.Moves(time.Time{}, 10); len(got) != 2 || got[0].ID != "r0/2" {
			t.Errorf("%+v", got)
		}
		ended, running := h.MoveTotals(time.Now())
		if len(ended) != 1 || ended[0].Count != 1 || running != 1 {
			t.Errorf("%+v, %d", ended, running)
		}
		time.Sleep(time.Second)
		if got := h.Snapshot().Models[0].Replicas[0].Residents; got != 4 {
			t.Errorf("%d residents", got)
		}
	})
}

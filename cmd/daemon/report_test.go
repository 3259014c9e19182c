package daemon

import (
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/mover"
)

// TestNewsFitIntoAReport: what is under way comes first, then what has ended
// last, and only what this replica sells.
func TestNewsFitIntoAReport(t *testing.T) {
	moves := []mover.Move{{ID: "live 0", Role: "source", State: "round"}, {ID: "other", Role: "target", State: "moved"}, {ID: "live 1", Role: "source", State: "open"}}
	for i := range 100 {
		state := "moved"
		if i%2 > 0 {
			state = "failed"
		}
		moves = append(moves, mover.Move{ID: fmt.Sprint("ended ", i), Role: "source", State: state, Why: "why"})
	}
	got := news(moves)
	if len(got) != toldMoves {
		t.Fatalf("%d moves", len(got))
	}
	for i, want := range []string{"live 1 open", "live 0 round", "ended 99 aborted", "ended 98 done"} {
		if g := got[i].Id + " " + got[i].State; g != want {
			t.Errorf("move %d is %q, want %q", i, g, want)
		}
	}
	if len(news(moves[:1])) != 1 || news(nil) != nil {
		t.Error("few moves")
	}
}

package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
)

// TestRefusalsWait checks that a plan which is refused while new plans are held off is rolled back
// when that ends, that it delays no other model's, that a later refusal of the model takes its
// place, also while the first one is ordered, and that none is ordered again after it was decided.
func TestRefusalsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var decided []string
		var f *refusals
		f = newRefusals(func(_ context.Context, o fleetstate.Order) error {
			r, since := o.(fleetstate.Refuse), time.Since(began)
			var err error
			switch {
			case r.Model == "held" && since < time.Minute:
				return fmt.Errorf("held: %w", fleetstate.ErrHeldOff)
			case r.Model == "unstored" && since < 10*time.Second:
				return fmt.Errorf("unstored: %w", fleetstate.ErrNotStored)
			case r.Model == "unanswered" && since < 5*time.Second:
				return fmt.Errorf("unanswered: %w", fleetstate.ErrUnanswered)
			case r.Model == "free" && r.Epoch == 2:
				f.add(fleetstate.Refuse{Model: "free", Epoch: 4}) // while this one is ordered
			case r.Model == "pinned":
				err = errors.New("pinned")
			}
			decided = append(decided, fmt.Sprintf("%s %d %v", r.Model, r.Epoch, since.Round(time.Second)))
			return err
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.run(ctx) }()
		for _, model := range []string{"held", "unstored", "unanswered", "pinned", "free"} {
			f.add(fleetstate.Refuse{Model: model, Epoch: 2})
			synctest.Wait()
		}
		time.Sleep(30 * time.Second)
		f.add(fleetstate.Refuse{Model: "held", Epoch: 3})
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if want := []string{"pinned 2 0s", "free 2 0s", "free 4 0s", "unanswered 2 5s", "unstored 2 10s", "held 3 1m0s"}; !slices.Equal(decided, want) {
			t.Errorf("decided %q, want %q", decided, want)
		}
	})
}

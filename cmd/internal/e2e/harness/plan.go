package harness

import (
	"context"
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// StorePlan stores the stages of the only model under the next epoch, which it returns, as a planner does. It tries
// again after every error: a planner may write, too, and the store may be slow to answer.
func StorePlan(t testing.TB, s store.Plans, stages ...policies.Stage) (stored policies.Epoch) {
	t.Helper()
	testkit.WaitForValue(t, "a plan to be stored", func() error {
		ctx, cancel := context.WithCancel(t.Context())
		updates := s.Watch(ctx)
		u := <-updates
		cancel()
		for range updates {
		}
		if u.Err != nil {
			return fmt.Errorf("read: %w", u.Err)
		}
		o := u.Object
		o.Epoch++
		o.Plans = []policies.Plan{{Model: Model, Epoch: o.Epoch, Stages: stages}}
		_, err := s.CompareAndSwap(t.Context(), u.Version, o)
		stored = o.Epoch
		return err
	}, func(err error) bool { return err == nil })
	return stored
}

package fleet

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestFleetDrains checks that an order is answered when it is stored, reaches the
// replica's migrator and the proxies, and survives a restart of the control plane. An
// order that cannot be stored changes nothing.
func TestFleetDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := new(brokenStore)
		h := newHarness(t, st, nil)
		s := h.open()
		if reply, err := report(t, s, "r0", true); err != nil || reply.GetDrain() {
			t.Fatal(reply, err)
		}
		if err := h.Drain(t.Context(), "r0"); err != nil {
			t.Fatal(err)
		}
		if err := h.Drain(t.Context(), "r9"); !errors.Is(err, orders.ErrUnknownReplica) {
			t.Errorf("an unknown replica: %v", err)
		}
		if err := h.Drain(t.Context(), "r1"); !errors.Is(err, orders.ErrLastReplica) {
			t.Errorf("the last one: %v", err)
		}
		m := h.Snapshot().Models[0]
		if r := m.Replicas[0]; !r.Drained || r.Health != resources.Draining || r.Stage != -1 || plantest.Format(m.Plan) != "r1" || plantest.Format(h.shown.last().Models[0].Plan) != "r1" {
			t.Errorf("%+v under %s", r, plantest.Format(m.Plan))
		}
		if reply, err := report(t, s, "r0", true); err != nil || !reply.GetDrain() {
			t.Error(reply, err)
		}
		h.stop()

		h = newHarness(t, st, nil)
		defer h.stop()
		s = h.open()
		if reply, err := report(t, s, "r0", true); err != nil || !reply.GetDrain() {
			t.Error("a restart forgets the drain:", reply, err)
		}
		st.full.Store(true)
		if err := h.Undrain(t.Context(), "r0"); !errors.Is(err, orders.ErrNotStored) || !strings.Contains(err.Error(), "try again: disk full") {
			t.Errorf("with a broken store: %v", err)
		}
		time.Sleep(2 * retryDelay)
		if reply, err := report(t, s, "r0", true); err != nil || !reply.GetDrain() || plantest.Format(h.shown.last().Models[0].Plan) != "r1" {
			t.Error("an order that was not stored is in force:", reply, err)
		}
		st.full.Store(false)
		if err := h.Undrain(t.Context(), "r0"); err != nil {
			t.Error(err)
		}
		if reply, err := report(t, s, "r0", true); err != nil || reply.GetDrain() || plantest.Format(h.shown.last().Models[0].Plan) != "r1 r0" {
			t.Error("after the drain:", reply, err, plantest.Format(h.shown.last().Models[0].Plan))
		}
	})
}

// TestFileDrains checks that the migrator is also notified of a drain in the
// configuration, and that an operator cannot end that drain.
func TestFileDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		defer h.stop()
		r0, r1 := testReplica("r0"), testReplica("r1")
		r0.Draining = true
		if err := h.SetReplicas([]policies.Replica{r0, r1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if reply, err := report(t, h.open(), "r0", true); err != nil || !reply.GetDrain() {
			t.Error(reply, err)
		}
		if err := h.Undrain(t.Context(), "r0"); !errors.Is(err, orders.ErrDrainedByFile) {
			t.Errorf("undrain: %v", err)
		}
	})
}

// TestStoppedFleetRefusesOrders checks that an order to a stopped fleet is an error.
func TestStoppedFleetRefusesOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, new(store.Memory), nil)
		h.stop()
		wantCode(t, h.Drain(t.Context(), "r0"), codes.Unavailable, "stops")
	})
}

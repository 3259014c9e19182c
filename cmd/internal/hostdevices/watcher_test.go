package hostdevices_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/cmd/internal/hostdevices"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The Watcher keeps the result of the latest reading, even if that reading also returned an error.
func TestLooksNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		s := hostdevices.New(hostdevices.Config{Host: inventory.Config{Name: "a"}, Read: func(c inventory.Config) (*topology.Machine, error) {
			looks++
			return &topology.Machine{Name: fmt.Sprint(c.Name, looks)}, errors.New("the driver is away")
		}})
		if s.Machine() != nil {
			t.Error("it has seen something before it ran")
		}
		stop := testkit.Run(t, s.Run)
		for _, want := range []string{"a1", "a2", "a3"} {
			synctest.Wait()
			if m := s.Machine(); m == nil || m.Name != want {
				t.Errorf("it knows %v, want %s", m, want)
			}
			time.Sleep(time.Minute)
		}
		stop()
	})
}

// The default configuration inspects the host that the test runs on.
func TestThisMachine(t *testing.T) {
	s := hostdevices.New(hostdevices.Config{Host: inventory.Config{Name: "here", NVML: "libnone.so", CUDA: "libnone.so", Verbs: "libnone.so"}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.NoError(t, s.Run(ctx))
	if m := s.Machine(); m == nil || m.Name != "here" || m.Memory.Total == 0 {
		t.Errorf("%+v", m)
	}
}

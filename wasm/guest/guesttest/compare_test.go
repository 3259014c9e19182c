package guesttest

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestGuestDecidesAsNative makes calls of every kind with random arguments to the guest and
// to the native policies, and compares the answers.
func TestGuestDecidesAsNative(t *testing.T) {
	i := Start(t, Load(t, hosttest.Guest(t), host.Config{}))
	testkit.NoError(t, i.Configure(abi.Call{}, []byte("well-behaved")))
	Compare(t, i, hosttest.Native{})
	now, first := i.Memory()
	t.Logf("memory %d KiB, %d KiB when it was new; the last guard took %d ticks", now>>10, first>>10, i.Fuel())
}

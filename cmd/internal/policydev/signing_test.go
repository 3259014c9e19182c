package policydev

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// TestGrants checks that a statement grants a module what it exports, within what is asked for.
func TestGrants(t *testing.T) {
	configure := hosttest.Function(abi.Configure.Export(), nil, hosttest.Result(0, 0))
	module := hosttest.Policy(hosttest.LeastLoad(), configure).Encode()
	path := filepath.Join(t.TempDir(), "bids.wasm")
	testkit.NoError(t, os.WriteFile(path, module, 0o600))
	limits := map[string]sign.Grant{"bid-select": {Fuel: 20000}}
	want := []sign.Grant{{Kind: abi.Select, Fuel: 20000}}
	for _, kinds := range [][]string{nil, {"bid-select"}} {
		if got := testkit.Must(Grants(t.Context(), path, kinds, limits, true)); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v, want %v", kinds, got, want)
		}
	}
	testkit.NoError(t, os.WriteFile(path+".bare", hosttest.LeastLoadModule(), 0o600))
	_, err := Grants(t.Context(), path+".bare", nil, nil, true)
	testkit.WantError(t, err, "does not export cs_configure_v1")
	for _, c := range []struct {
		kind   string
		limits map[string]sign.Grant
	}{{"refine", nil}, {"configure", nil}, {"bid-select", map[string]sign.Grant{"refine": {}}}} {
		_, err := Grants(t.Context(), path, []string{c.kind}, c.limits, false)
		if not := (*NotDecidedError)(nil); !errors.As(err, &not) {
			t.Errorf("kind %s, limits %v: %v", c.kind, c.limits, err)
		}
	}
}

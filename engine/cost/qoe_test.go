package cost

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestPolicytestHasTheShippedProfile compares the models of the tests of package policies,
// which cannot import this package, with the profile that they name.
func TestPolicytestHasTheShippedProfile(t *testing.T) {
	p, err := Builtin("h200-llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := policytest.H200Cost(), p.Cost(); got != want {
		t.Errorf("policytest has the cost %+v, the profile %+v", got, want)
	}
	if got, want := policytest.H200QoE(), p.QoEModel(); got != want {
		t.Errorf("policytest has the QoE %+v, the profile %+v", got, want)
	}
}

package cost

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestPolicytestHasTheShippedProfile compares the models of the tests of package policies,
// which cannot import this package, with the profile that they name.
func TestPolicytestHasTheShippedProfile(t *testing.T) {
	p, err := Builtin("h200-llama-3.1-8b")
	testkit.NoError(t, err)
	if got, want := policytest.H200Cost(), p.Cost(); got != want {
		t.Errorf("policytest has the cost %+v, the profile %+v", got, want)
	}
	if got, want := policytest.H200QoE(), p.QoEModel(); got != want {
		t.Errorf("policytest has the QoE %+v, the profile %+v", got, want)
	}
}

// TestRegressedQoE reads a profile with a regressed QoE model, which QoEModel prefers to the
// iteration model, and refuses broken ones.
func TestRegressedQoE(t *testing.T) {
	with := func(qoe string) (Profile, error) {
		return Read(strings.NewReader(strings.Replace(valid, `"kappa":0`, `"kappa":0,"qoe":`+qoe, 1)))
	}
	p, err := with(`{"d0":0.02,"d1":2e-6,"d2":4e-8,"d3":2e-12,"d4":6e-9,"fit_error":{"p50":0.1,"p90":0.2,"points":7}}`)
	want := policies.QoE{D0: 0.02, D1: 2e-6, D2: 4e-8, D3: 2e-12, D4: 6e-9}
	if err != nil || p.QoEModel() != want || p.QoE.FitError != (FitError{P50: 0.1, P90: 0.2, Points: 7}) {
		t.Fatalf("%+v, %v", p.QoE, err)
	}
	if got := p.Scale(2).QoEModel(); got != want.Scale(0.5) {
		t.Errorf("twice the speed: %+v", got)
	}
	if got := p.TensorParallel(2); got.QoEModel().D0 != got.D0 {
		t.Errorf("two ranks: %+v is the regression for one", got.QoEModel())
	}
	for _, qoe := range []string{
		`{"d0":0.02,"d4":-1}`, `{"d0":0.02,"kappa":1}`, `{"d0":0,"fit_error":{"points":7}}`, `{"d0":0.02,"fit_error":{"p50":-1}}`,
	} {
		if _, err := with(qoe); err == nil || !strings.Contains(err.Error(), "qoe") && !strings.Contains(err.Error(), "kappa") {
			t.Errorf("%s: %v", qoe, err)
		}
	}
}

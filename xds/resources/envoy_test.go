package resources_test

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestEnvoyAccepts has a real Envoy check every message in the golden files.
func TestEnvoyAccepts(t *testing.T) {
	for name, v := range map[string]resources.View{"one model": fleet(), "two models": twoModels()} {
		t.Run(name, func(t *testing.T) {
			envoytest.Validate(t, string(static(t, build(t, v))))
		})
	}
	t.Run("bootstrap", func(t *testing.T) {
		b := testkit.Must(os.ReadFile("testdata/bootstrap.json"))
		envoytest.Validate(t, string(b))
	})
}

package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// root is the folder of the repository.
const root = "../../../.."

// cascade is the path of the command; "" if the slow tests do not run.
var cascade string

func TestMain(m *testing.M) { os.Exit(harness.MainOfSlowTests(m, &cascade)) }

// cascadeKube builds cascade-kube beside cascade, and returns its path.
var cascadeKube = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(cascade), "cascade-kube")
	if _, err := os.Stat(path); err == nil { // built by the test that runs this one in namespaces of its own
		return path, nil
	}
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "github.com/cascadeinfer/cascade/cmd/cascade-kube").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// steadyProfile returns the cost of engines that take so many seconds for a token, independent of other requests.
func steadyProfile(seconds float64) string {
	return fmt.Sprintf(`{"name": "steady", "source": "made up for tests", "unit": "seconds", "d0": %g, "d1": 0, "d2": 1e-8, "d3": 0, "d4": 0,
"kappa": 0, "kv_bytes_per_token": 131072, "kv_tokens": 65536, "max_batch": 64, "ranks": 1, "fit_error": {"p50": 0, "p90": 0, "points": 0}}`, seconds)
}

// newClients returns clients of a fleet whose engines have a profile.
func newClients(t *testing.T, profile, dataPlane, admin string) *harness.Clients {
	t.Helper()
	var p cost.Profile
	testkit.NoError(t, json.Unmarshal([]byte(profile), &p))
	c := &harness.Clients{
		T: t, DataPlane: dataPlane, Admin: admin, HTTP: harness.NewHTTP(),
		Engine: emulator.Config{Model: harness.Model, Context: 16384, Profile: p},
	}
	t.Cleanup(c.HTTP.CloseIdleConnections)
	return c
}

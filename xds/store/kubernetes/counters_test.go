package kubernetes_test

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// noise returns bytes that cannot be compressed.
func noise(size int) []byte {
	data := make([]byte, size)
	rand.Read(data)
	return data
}

func expectCounters(t *testing.T, k *kubernetes.Counters, want []byte) {
	t.Helper()
	if got, err := k.Load(); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d bytes of counters, want %d: %v", len(got), len(want), err)
	}
}

// TestLastCounters checks that the rate of saves does not hold for the last one of a process.
func TestLastCounters(t *testing.T) {
	k := simulated(kubetest.Simulate(t)).open(t, newName()).Counters("a")
	first, second := noise(500_000), []byte("second")
	testkit.NoError(t, k.Save(first))
	testkit.NoError(t, k.Save(second))
	expectCounters(t, k, first) // skipped: it would be too soon
	testkit.NoError(t, k.SaveLast(second))
	expectCounters(t, k, second)
}

// TestInterruptedCounters checks that parts of a save that was interrupted are removed by the next
// one, of the same process or of another.
func TestInterruptedCounters(t *testing.T) {
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	for name, next := range map[string]func(k *kubernetes.Counters) *kubernetes.Counters{
		"same process":    func(k *kubernetes.Counters) *kubernetes.Counters { return k },
		"another process": func(*kubernetes.Counters) *kubernetes.Counters { return c.Counters("a") },
	} {
		k := c.Counters("a")
		testkit.NoError(t, k.SaveLast([]byte("small")))
		server.Before(func(r *http.Request) int {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "-2") { // the last two parts are written
				return http.StatusForbidden
			}
			return 0
		})
		if k.SaveLast(noise(3_500_000)) == nil { // five parts
			t.Fatal("was not interrupted")
		}
		server.Before(nil)
		if stored, err := c.ConfigMaps(t.Context(), "counters"); err != nil || len(stored) != 3 {
			t.Errorf("%s: interrupted: %q, %v", name, stored, err)
		}
		k = next(k)
		testkit.NoError(t, k.SaveLast([]byte("again")))
		expectCounters(t, k, []byte("again"))
		if stored, err := c.ConfigMaps(t.Context(), "counters"); err != nil || len(stored) != 1 {
			t.Errorf("%s: saved again: %q, %v", name, stored, err)
		}
	}
}

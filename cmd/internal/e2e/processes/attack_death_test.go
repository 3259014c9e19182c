package processes

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackRequestOfDeath sends a request that ends every engine that gets it, through Envoy and the embedded
// proxy, to a fleet of four. It ends two at most.
func TestAttackRequestOfDeath(t *testing.T) {
	f := newAttackedFleet(t, 4)
	for _, port := range []string{"envoy", "proxy"} {
		for _, stream := range []string{"", `,"stream":true`} {
			resp, err := f.HTTP.Post("http://"+f.ports[port]+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"death","max_tokens":9`+stream+`}`))
			testkit.NoError(t, err)
			resp.Body.Close()
			ended := 0
			for _, e := range f.engines {
				if e.dead.Swap(false) {
					ended++
				}
			}
			if ended < 1 || ended > 2 || resp.StatusCode != 502 {
				t.Errorf("%s: it has ended %d engines of %d, and is answered with %s", port, ended, len(f.engines), resp.Status)
			}
			f.waitUntilServing()
		}
	}
}

package inprocess

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// withModel returns the body with another model name in it.
func withModel(body []byte, name string) []byte {
	return bytes.Replace(body, fmt.Appendf(nil, "%q", llm), fmt.Appendf(nil, "%q", name), 1)
}

// TestAdapters checks that requests for a LoRA adapter are routed like requests for their base
// model, begin where the adapter is loaded, whichever replica they came to, and migrate only among
// such replicas. An engine answers 404 for an adapter that it does not have, and each adapter
// answers with a different text.
func TestAdapters(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 4, control: keepReplicas, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
			f.Models[0].Adapters = []config.Adapter{{Name: "sql", Replicas: []string{"r0", "r1"}}, {Name: "poet", Replicas: []string{"r2"}}, {Name: "all"}}
			f.Models = append(f.Models, config.Model{Name: "other", Context: 4096, Profile: "testdata/steady.json"})
			f.Replicas[3].Model = "other"
		}})
		r.WaitFor("every front end knows which replicas have the adapters", func() bool {
			for _, n := range r.cfg.Fleet.Replicas[:3] {
				for _, name := range [...]string{"sql", "poet", "all"} {
					answer, err := r.HTTP.Post("http://"+n.Address+"/v1/completions", "application/json", bytes.NewReader(withModel(prompt(10, 1), name)))
					if err != nil {
						return false
					}
					answer.Body.Close()
					if answer.StatusCode != http.StatusOK {
						return false
					}
				}
			}
			return true
		})
		load := r.newLoad(0, 0)
		send := func(name string, n, output int) { load.Send(withModel(prompt(400+n, output), name), n%2 == 0) }
		var wg sync.WaitGroup
		for n := range 4 {
			for _, name := range [...]string{llm, "sql", "poet", "all"} {
				wg.Go(func() { send(name, n, 40) })
			}
		}
		wg.Wait()
		load.Report()
		// The test drains r0 or r1, where requests for its adapter run: only the other one can accept
		// them. If the host is busy, short answers end before they migrate.
		drained := "r0"
		for output := 1000; !r.migrated() && output < 20_000; output *= 2 {
			r.Order("undrain", drained)
			for n := range 4 {
				wg.Go(func() { send("sql", n, output) })
			}
			r.WaitFor("some run at r0 or r1", func() bool {
				for _, drained = range [...]string{"r0", "r1"} {
					if len(r.fronts[drained].LocalLegs()) > 0 {
						return true
					}
				}
				return false
			})
			r.drainAndWait(drained)
			wg.Wait()
		}
		load.Report()
		done, _ := r.migrations()
		if len(done) == 0 {
			t.Error("no request migrated")
		}
		for _, m := range done {
			if m.To != "r0" && m.To != "r1" {
				t.Errorf("%s went to %s, which does not have the adapter", m.Request, m.To)
			}
		}
	})
}

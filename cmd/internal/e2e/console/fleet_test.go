package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// startFleet runs a fleet of emulated engines behind the embedded proxy until the test ends.
func startFleet(t *testing.T, replicas int) *inprocess.Fleet {
	t.Helper()
	f := config.Fleet{
		Speed:   10,
		Models:  []config.Model{{Name: "llama-3.1-8b", Context: 131072, Profile: "h200-llama-3.1-8b"}},
		Control: config.Control{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Proxy:   config.Proxy{Listen: "127.0.0.1:0"},
	}
	for i := range replicas {
		f.Replicas = append(f.Replicas, config.Replica{ID: fmt.Sprintf("r%d", i), Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0"})
	}
	if errs := f.Validate(); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	fleet := testkit.Must(inprocess.New(inprocess.Config{Fleet: testkit.Must(wiring.Resolve(f, ".")), Drain: time.Second}))
	testkit.Run(t, fleet.Run)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitTimeout())
	defer cancel()
	testkit.NoError(t, fleet.Ready(ctx))
	return fleet
}

// sendRequests sends requests one after the other on each of some connections until stop is called.
func sendRequests(t *testing.T, url string, connections int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Transport: new(http.Transport)}
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				body := fmt.Sprintf(`{"model":"llama-3.1-8b","max_tokens":60,"prompt":"%s"}`, strings.Repeat(fmt.Sprintf("question %d of %d. ", n, i), 20+100*(n%3)))
				req := testkit.Must(http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body)))
				resp, err := client.Do(req)
				if err != nil {
					continue // at the end
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		client.CloseIdleConnections()
	})
	t.Cleanup(stop)
	return stop
}

// order gives an order as "cascade drain" does.
func order(t *testing.T, fleet *inprocess.Fleet, path string) {
	t.Helper()
	req := testkit.Must(http.NewRequest(http.MethodPost, fleet.AdminURL()+path, nil))
	req.Header.Set(control.AdminHeader, "1")
	resp := testkit.Must(http.DefaultClient.Do(req))
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s", path, resp.Status, body)
	}
}

// TestFleet watches a running fleet: its traffic, a drain, and a what-if of the real planner.
func TestFleet(t *testing.T) {
	b := openTab(t, 1440, 900)
	fleet := startFleet(t, 3)
	stop := sendRequests(t, fleet.URL(), 4)
	b.open(fleet.AdminURL() + "/")
	b.waitFor("the verdict", `document.querySelector("#headline").innerText === "The fleet is well" && document.querySelector("#detail").innerText.includes("3 of 3 replicas take requests. 1 of 1 proxy has the newest plan")`)
	b.waitFor("the traffic", `document.querySelector("#figures dd").innerText !== "0 /s" && document.querySelectorAll("#chart .bar.arrivals").length > 1 && document.querySelectorAll("#chart .bar.tokens").length > 1`)
	b.waitFor("how clients are served", `(cells => Number(cells[2].innerText) > 0 && cells[3].innerText === "0" && cells[4].innerText === "0" && /s, .*s/.test(cells[5].innerText) && cells[6].innerText.includes("ms"))(document.querySelector("#models tbody tr").children)`)
	stop()
	if got := b.text("#proxies tbody"); !strings.Contains(got, "current") {
		t.Errorf("proxies %q", got)
	}
	order(t, fleet, "/drain?replica=r1")
	b.waitFor("the drain", `document.querySelector("#replicas tbody tr").innerText.includes("drained by operator") && document.querySelector("#replicas tbody th").innerText === "r1"`)
	order(t, fleet, "/undrain?replica=r1")
	b.waitFor("the end of the drain", `!document.querySelector("#replicas").innerText.includes("drained by operator")`)

	b.set("#whatif-replicas", "16")
	b.set("#whatif-mix", "mixed")
	b.set("#whatif-rate", "12")
	b.click("#whatif button")
	b.waitFor("a plan", `document.querySelector("#whatif-summary").innerText.startsWith("16 replicas, 12 requests/s, mix mixed")`)
	if n := value[int](b, `[...document.querySelectorAll("#whatif-stages tbody tr")].reduce((sum, row) => sum + Number(row.children[2].innerText), 0)`); n != 16 {
		t.Errorf("the plan has %d replicas", n)
	}
	b.set("#whatif-iteration_ms", "0.001")
	b.click("#whatif button")
	b.waitFor("the error of the bound", `document.querySelector("#whatif-iteration_ms-error").textContent.includes("16 replicas cannot carry")`)
	b.noErrors()
}

package envoy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestModuleComesAndGoes serves every request without the module, with an invalid one, with a valid
// one, and without it again. The valid one also gets a body that arrives slowly.
func TestModuleComesAndGoes(t *testing.T) {
	v := view()
	v.Models[1].Hosts = []string{"n.test"} // so that every request names its model by its host
	r := startHarness(t, v)
	without := func(what string) {
		t.Helper()
		r.expect(what+": sized", r.post("m.test", bytes.NewReader(sized("m", 400))), "m1", "", "", 400)
		r.expect(what+": chunked", r.post("m.test", chunked{bytes.NewReader(sized("m", 400))}), "m2", "", "", 400)
	}
	without("none yet")

	broken, err := resources.NewModule([]byte("\x00asm\x01\x00\x00\x00\x03\xff"), bodyLimit)
	testkit.NoError(t, err)
	v = r.view
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, broken
	r.serveView(v)
	r.waitForSlotStats("Envoy refuses the broken one", func(s map[string]int64) bool { return s["update_rejected"] == 1 })
	without("a broken one")

	v.Settings.Module = module(t)
	r.serveView(v)
	r.waitForEstimates(true)
	r.expect("loaded: sized", r.post("m.test", bytes.NewReader(sized("m", 400))), "m1", "100", "m", 400)
	r.expect("loaded: chunked", r.post("m.test", chunked{bytes.NewReader(completion("m", 400))}), "m1", "100", "m", len(completion("m", 400)))
	slowBody(r)

	r.serveView(r.view)
	r.waitForEstimates(false)
	without("gone")
}

// trappingModule is a module that loads, and faults at the first request:
//
//	(module (memory (export "memory") 1)
//	  (func (export "proxy_abi_version_0_2_1"))
//	  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) unreachable)
//	  (func (export "proxy_on_memory_allocate") (param i32) (result i32) i32.const 0))
func trappingModule() []byte {
	named := func(name string, kind, index byte) string {
		return string(rune(len(name))) + name + string([]byte{kind, index})
	}
	section := func(id byte, body string) string { return string([]byte{id, byte(len(body))}) + body }
	return []byte("\x00asm\x01\x00\x00\x00" +
		section(1, "\x03\x60\x00\x00\x60\x03\x7f\x7f\x7f\x01\x7f\x60\x01\x7f\x01\x7f") +
		section(3, "\x03\x00\x01\x02") +
		section(5, "\x01\x00\x01") +
		section(7, "\x04"+named("memory", 2, 0)+named("proxy_abi_version_0_2_1", 0, 0)+named("proxy_on_request_headers", 0, 1)+named("proxy_on_memory_allocate", 0, 2)) +
		section(10, "\x03"+"\x02\x00\x0b"+"\x03\x00\x00\x0b"+"\x04\x00\x41\x00\x0b"))
}

// TestTrapFailsOpen checks that a module that faults fails one request per worker, and is bypassed
// from then on.
func TestTrapFailsOpen(t *testing.T) {
	m, err := resources.NewModule(trappingModule(), bodyLimit)
	testkit.NoError(t, err)
	r := startHarness(t, view())
	v := r.view
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, m
	r.serveView(v)
	const workers = 2
	failed, good := 0, 0
	for give := time.Now().Add(time.Minute); good < 100 || failed == 0; {
		r.client.CloseIdleConnections()
		got := r.post("m.test", bytes.NewReader(sized("m", 400)))
		if got.Status == 503 {
			if failed++; failed > workers {
				t.Fatal("more requests fail than workers meet the fault")
			}
			good = 0
			continue
		}
		r.expect("beside the fault", got, "m1", "", "", 400)
		good++
		if t.Failed() || time.Now().After(give) {
			t.Fatalf("%d failed, %d good", failed, good)
		}
	}
}

// TestServiceDown checks that without the length service Envoy routes requests whose host selects
// the model by their size, whatever headers they claim, and asks the clients of others to try again.
func TestServiceDown(t *testing.T) {
	v := view()
	v.Settings.Estimator, v.Settings.LengthService = resources.ExtProc, "127.0.0.1:1" // nothing listens there
	r := startHarness(t, v)
	r.waitUntilServing()
	for _, n := range valuesAround(400, 4000, 220<<10) {
		got := r.post("m.test", bytes.NewReader(sized("m", n)), "x-cascade-tokens", "5", "x-gateway-model-name", "m")
		r.expect(fmt.Sprintf("%d bytes", n), got, stageOf(n/4), "", "", n)
	}
	body := completion("m", 4)
	r.expect("chunked", r.post("m.test", chunked{bytes.NewReader(body)}), "m2", "", "", len(body))
	if got := r.post("else.test", bytes.NewReader(body)); got.Status != 503 {
		t.Errorf("shared host: %+v", got)
	}
}

// TestLateService checks a body for which the length service waits no longer: Envoy sends the whole request to the
// stage of requests without an estimate.
func TestLateService(t *testing.T) {
	v := view()
	v.Settings.Estimator, v.Settings.LengthService = resources.ExtProc, lengthService(t, v, 50*time.Millisecond)
	r := startHarness(t, v)
	r.waitUntilServing()
	body := completion("m", 400)
	r.expect("late", r.post("m.test", chunked{slow{bytes.NewReader(body), 2}}), "m2", "", "", len(body))
}

// slowBody checks that Envoy waits for a slow body without delaying other requests.
func slowBody(r *harness) {
	hold := chunked{slow{bytes.NewReader(completion("m", 64<<10)), 1 << 10}}
	done := make(chan served)
	go func() {
		got, err := r.send("POST", "m.test", hold)
		if err != nil {
			got.Raw = err.Error()
		}
		done <- got
	}()
	for range 20 {
		r.expect("beside it", r.post("m.test", chunked{strings.NewReader(`{"prompt":"xxxxxxxx"}`)}), "m0", "2", "m", 21)
	}
	r.expect("the slow one", <-done, "m2", "16384", "m", len(completion("m", 64<<10)))
}

package estimators

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestModuleComesAndGoes: without its module, with one that is no module inside,
// with one, and without it again: every request is served.
func TestModuleComesAndGoes(t *testing.T) {
	v := view()
	v.Models[1].Hosts = []string{"n.test"} // so that every request names its model by its host
	r := start(t, v)
	without := func(what string) {
		t.Helper()
		r.expect(what+": sized", r.post("m.test", bytes.NewReader(sized("m", 400))), "m1", "", "", 400)
		r.expect(what+": chunked", r.post("m.test", chunked{bytes.NewReader(sized("m", 400))}), "m2", "", "", 400)
	}
	without("none yet")

	broken, err := resources.NewModule([]byte("\x00asm\x01\x00\x00\x00\x03\xff"))
	if err != nil {
		t.Fatal(err)
	}
	v = r.view
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, broken
	r.show(v)
	r.until("Envoy refuses the broken one", func(s map[string]int64) bool { return s["update_rejected"] == 1 })
	without("a broken one")

	v.Settings.Module = module(t)
	r.show(v)
	r.marks(true)
	r.expect("loaded: sized", r.post("m.test", bytes.NewReader(sized("m", 400))), "m1", "100", "m", 400)
	r.expect("loaded: chunked", r.post("m.test", chunked{bytes.NewReader(completion("m", 400))}), "m1", "100", "m", len(completion("m", 400)))

	r.show(r.view)
	r.marks(false)
	without("gone")
}

// TestSlowBody: a body that comes slowly is waited for, and holds nobody else up.
func TestSlowBody(t *testing.T) {
	v := view()
	v.Settings.Estimator, v.Settings.Module = resources.Wasm, module(t)
	r := start(t, v)
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

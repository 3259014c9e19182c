package console

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/xds/control"
)

// TestReadOnly checks that a page without a token offers no orders.
func TestReadOnly(t *testing.T) {
	b := openTab(t, 1440, 900)
	b.open(newSite(t, &scripted{view: fleetView(4)}).url())
	b.waitFor("the fleet", `document.querySelectorAll("#replicas tbody tr").length === 4`)
	if value[bool](b, `document.querySelector("#orders").checkVisibility()`) || !value[bool](b, `document.querySelector("#reads").checkVisibility()`) {
		t.Error("the page offers orders")
	}
	b.noErrors()
}

// TestOrders gives each order from the page: what arrives is the order that was chosen, with the
// token; a wrong token and a refusal are shown at their fields.
func TestOrders(t *testing.T) {
	const token = "0123456789abcdef"
	var mu sync.Mutex
	var got []string
	source := &scripted{view: fleetView(4)}
	source.edit(func(v *fakePage) {
		v.replica(3).Drain, v.model().Pinned = []string{"operator"}, &control.Pinned{FormerPlan: control.FormerPlan{Epoch: 12}, By: "ops"}
		v.replica(0).Drain = []string{"file"} // an order does not take that back
	})
	b := openTab(t, 1440, 900)
	b.open(newOrderSite(t, source, token, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Method+" "+r.URL.String())
		if r.URL.Query().Get("replica") == "r1" {
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"error":"r1: is the last one of its stage"}`)
			return
		}
		io.WriteString(w, `{}`)
	}).url())
	b.waitFor("the orders", `document.querySelector("#orders").checkVisibility()`)
	choose := func(kind, object string) {
		t.Helper()
		b.script(fmt.Sprintf(`for (const [id, value] of [["order-kind", %q], ["order-object", %q]]) {
			const select = document.getElementById(id);
			if (value) { select.value = value; select.dispatchEvent(new Event("change")); }
		}`, kind, object))
	}
	b.set("#order-token", "wrong")
	choose("drain", "r2")
	b.click("#order button")
	b.waitFor("the refusal of the token", `document.querySelector("#order-token-error").textContent.includes("console_token_file") && document.activeElement.id === "order-token"`)
	b.set("#order-token", token)
	for _, order := range []struct{ kind, object, want string }{
		{"drain", "r2", "POST /drain?replica=r2&by=console"},
		{"undrain", "r3", "POST /undrain?replica=r3&by=console"},
		{"plan/pin", "11", "POST /plan/pin?model=llama-3.1-8b&epoch=11&by=console"},
		{"plan/unpin", "plan 12 by ops", "POST /plan/unpin?model=llama-3.1-8b&by=console"},
		{"plan/rollback", "9", "POST /plan/rollback?model=llama-3.1-8b&epoch=9&by=console"},
	} {
		choose(order.kind, order.object)
		b.script(`document.querySelector("#order-answer").hidden = true`)
		b.click("#order button")
		b.waitFor("the answer to "+order.kind, `!document.querySelector("#order-answer").hidden && document.querySelector("#order-answer").textContent.startsWith("Done")`)
		mu.Lock()
		if last := got[len(got)-1]; last != order.want {
			t.Errorf("%s: %s, want %s", order.kind, last, order.want)
		}
		mu.Unlock()
	}
	choose("drain", "r1")
	b.click("#order button")
	b.waitFor("the refusal", `document.querySelector("#order-object-error").textContent === "r1: is the last one of its stage" && document.querySelector("#order-answer").hidden`)
	if got := value[string](b, `[...document.querySelectorAll("#order-object option")].map(o => o.value).join()`); got != ",r0,r1,r2" {
		t.Errorf("replicas that are offered to be drained: %s", got)
	}
	source.edit(func(v *fakePage) { v.stage(0).Replicas = []control.Replica{} })
	b.waitFor("that nothing is chosen once r1 is gone", `document.querySelector("#order-object").value === "" && document.querySelector("#order button").disabled`)
	choose("undrain", "")
	if got := value[string](b, `[...document.querySelectorAll("#order-object option")].map(o => o.value).join()`); got != ",r3" {
		t.Errorf("replicas that are offered to be undrained: %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 6 {
		t.Errorf("%d orders arrived: %v", len(got), got)
	}
}

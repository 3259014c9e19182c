package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestVerdict checks what a page says first: well, then a fault with its meaning, its remedy and a
// command, then well again, each without a reload.
func TestVerdict(t *testing.T) {
	source := &scripted{view: fleetView(8)}
	b := openTab(t, 1440, 900)
	b.open(newSite(t, source).url())
	if got := b.text("#headline"); got != "The fleet is well" {
		t.Errorf("headline %q", got)
	}
	if got := b.text("#detail"); !strings.Contains(got, "8 of 8 replicas take requests") || !strings.Contains(got, "2 of 2 proxies have the newest plan, 12") {
		t.Errorf("detail %q", got)
	}
	for selector, want := range map[string]string{
		"#stages": "4,096–∞", "#replicas": "ready", "#migrations": "live, shm", "#history": "+18 %", "#proxies": "envoy@edge-2", "#slots": "6 shadow, 2 canary", "#figures": "14.2 /s", "#plane": "control-1",
		"#models": "851\t12\t2\t184 ms, 1.31 s\t21.2 ms, 38.8 ms",
	} {
		if got := b.text(selector); !strings.Contains(got, want) {
			t.Errorf("%s lacks %q: %s", selector, want, got)
		}
	}
	if got := value[string](b, `document.querySelector("#chart svg").getAttribute("aria-label")`); !strings.Contains(got, "17 from s0 to s1") || !strings.Contains(got, "s0, 0–4,096 tokens, 4 replicas, 91 % of the requests") {
		t.Errorf("the chart says %q", got)
	}

	source.edit(func(v *fakePage) {
		v.Status.Faults = []control.Fault{{Kind: "replica", Object: "r3", Text: "the engine does not answer", Seconds: 75}}
		v.replica(3).Health, v.replica(3).HealthReason = "unhealthy", "the engine does not answer"
	})
	b.waitFor("the fault", `document.querySelector("#headline").innerText === "One thing does not work"`)
	for _, want := range []string{"r3", "the engine does not answer", "for 1 min 15 s", "It gets no new requests", "restart the engine", "cascade status"} {
		if got := b.text("#faults"); !strings.Contains(got, want) {
			t.Errorf("the fault lacks %q: %s", want, got)
		}
	}
	if got := b.text("#replicas tbody tr"); !strings.Contains(got, "r3") || !strings.Contains(got, "unhealthy") {
		t.Errorf("the first row is %q", got)
	}
	if got := value[string](b, "document.title"); !strings.HasPrefix(got, "One thing does not work") {
		t.Errorf("title %q", got)
	}

	for headline, edit := range map[string]func(v *fakePage){
		"Requests or orders fail":       func(v *fakePage) { v.Status.Faults[0].NotReady, v.Status.Epoch = true, 0 },
		"The control plane is starting": func(v *fakePage) { v.Status.Faults[0].NotReady, v.Status.Epoch = false, 0 },
	} {
		source.edit(edit)
		b.waitFor(headline, fmt.Sprintf(`document.querySelector("#headline").innerText === %q`, headline))
	}

	source.edit(func(v *fakePage) {
		v.Status.Faults, v.Status.Epoch = nil, 12
		v.stage(1).Replicas = v.stage(1).Replicas[:3]
	})
	b.waitFor("that it is well again", `document.querySelector("#headline").innerText === "The fleet is well" && document.querySelector("#faults").hidden`)
	b.waitFor("that a replica has left", `document.querySelectorAll("#replicas tbody tr").length === 7`)
	b.noErrors()
}

// TestWidths checks, at the widths of small laptops and half screens, that no table is wider than its card, that no
// word of the tables breaks, and that the legend has all five bands of load.
func TestWidths(t *testing.T) {
	v := fleetView(24)
	v.Migrations.Latest = append(v.Migrations.Latest, loadreport.Migration{ID: "r2/1", Request: "chatcmpl-3f2b8c1e5a7d4e6f9b0c1d2e3f4a5b6c", Cause: "engine lost", From: "llama-0", To: "llama-11",
		Method: "handoff", Transport: "cascade", State: "aborted", Reason: "its engine was lost while the blocks were copied", Tokens: 104_858, Bytes: 12_884_901_888, Stall: 0.0412, Seconds: 1.2, Reported: time.Now().Add(-44 * time.Second)})
	for _, width := range []int64{1100, 1280, 1400} {
		b := openTab(t, width, 900)
		b.open(newSite(t, &scripted{view: v}).url())
		if got := value[string](b, `[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute("aria-label")+" "+e.scrollWidth+" of "+e.clientWidth).join("; ")`); got != "" {
			t.Errorf("%d px: wider than their cards: %s", width, got)
		}
		// A word that is broken has more than one box.
		b.script(`window.broken = [...document.querySelectorAll("td, th")].filter(e => e.checkVisibility()).flatMap(cell => {
			const out = [], walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
			for (let node; (node = walk.nextNode()); ) for (const word of node.data.matchAll(/\S{1,14}(?!\S)/g)) {
				if (word.index > 0 && /\S/.test(node.data[word.index - 1])) continue;
				const range = document.createRange();
				range.setStart(node, word.index);
				range.setEnd(node, word.index + word[0].length);
				if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) out.push(word[0]);
			}
			return out;
		})`)
		if got := value[string](b, `broken.join(" ")`); got != "" {
			t.Errorf("%d px: broken words: %s", width, got)
		}
		if n := value[int](b, `document.querySelectorAll(".legend rect[class^=load-]").length`); n != 5 {
			t.Errorf("the legend has %d of 5 bands", n)
		}
		b.noErrors()
	}
}

// TestReconnect checks that a page says since when it is disconnected, keeps what it knew, and goes
// on when the control plane is back.
func TestReconnect(t *testing.T) {
	source := &scripted{view: fleetView(4)}
	s := newSite(t, source)
	b := openTab(t, 1440, 900)
	b.open(s.url())
	s.stop()
	b.waitFor("the loss", `document.querySelector("#headline").innerText.startsWith("Disconnected since ") && document.querySelector("#connection").innerText === "Disconnected"`)
	if got := b.text("#detail"); !strings.Contains(got, "The next attempt is in") {
		t.Errorf("detail %q", got)
	}
	if n := value[int](b, `document.querySelectorAll("#replicas tbody tr").length`); n != 4 {
		t.Errorf("%d replicas are shown meanwhile", n)
	}
	source.edit(func(v *fakePage) { v.Status.Epoch = 13 })
	s.start()
	b.waitFor("the return", `document.querySelector("#headline").innerText === "The fleet is well" && document.querySelector("#detail").innerText.includes("plan, 13")`)
	if got := b.text("#connection"); !strings.HasPrefix(got, "Live") {
		t.Errorf("connection %q", got)
	}
}

// TestHostileNames checks that names and texts that look like HTML are shown as they are.
func TestHostileNames(t *testing.T) {
	const hostile = `<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'"&amp;` + "\u202e" + `</td>`
	v := fleetView(4)
	v.Name = hostile
	v.Status.Faults = []control.Fault{{Kind: hostile, Object: hostile, Text: hostile, NotReady: true}}
	m, r := v.model(), v.replica(0)
	m.Name, m.Reason, m.Planner, m.Pinned = hostile, hostile, hostile, &control.Pinned{By: hostile}
	r.ID, r.Host, r.Health, r.HealthReason, r.Role, r.Drain = hostile, hostile, hostile, hostile, hostile, []string{hostile}
	v.replica(1).ID = "__proto__"
	m.Stages[0].Name, m.Stages[1].Reason.MergedWith = hostile, hostile
	d := &v.Models[0].History[0]
	d.Reason, d.By, d.Decision = hostile, hostile, hostile
	v.Status.Models, v.Models = append(v.Status.Models, fleetView(2).Status.Models...), append(v.Models, fleetView(2).Models...)
	n := &v.Status.Nodes[0]
	n.ID, n.Current, n.LastError, n.Plane = hostile, false, hostile, hostile
	v.Status.Groups, v.Mixes = []control.Group{{Reason: hostile, Nodes: 1}}, []string{hostile}
	v.Status.Planner = control.Planner{Shared: true, Self: hostile, Holder: hostile}
	v.Slots[0].Slot, v.Slots[0].Stable, v.Slots[0].Candidate, v.Slots[0].Phases[0].Phase = hostile, hostile, hostile, hostile
	v.Slots[0].Hosts[0] = console.SlotHost{Host: hostile, Module: hostile, Phase: hostile, Problem: hostile}
	g := &v.Migrations.Latest[0]
	g.Request, g.Cause, g.From, g.To, g.Method, g.Transport, g.State, g.Reason = hostile, hostile, hostile, hostile, hostile, hostile, hostile, hostile
	source := &scripted{view: v}
	b := openTab(t, 1440, 900)
	b.open(newSite(t, source).url())
	if value[bool](b, `"attacked" in window || document.querySelector("img, main script, [onerror]") !== null`) {
		t.Error("a name was parsed as HTML")
	}
	shown := value[string](b, "document.body.textContent")
	if n := strings.Count(shown, hostile); n < 25 {
		t.Errorf("the name is shown %d times as it is:\n%s", n, shown)
	}
	if got := value[string](b, `[...document.querySelectorAll("#replicas tbody th")].map(e => e.textContent).sort().join(" ")`); !strings.Contains(got, "__proto__") || !strings.Contains(got, hostile) {
		t.Errorf("replicas %q", got)
	}
	if got := value[string](b, `document.querySelector("#model").selectedOptions[0].textContent`); got != hostile {
		t.Errorf("model %q", got)
	}
	// The policy of the page forbids it even where the code would.
	b.script(`try { document.body.innerHTML += "<i>x</i>"; window.parsed = 1 } catch (e) { window.refused = String(e) }`)
	if !value[bool](b, `"refused" in window && !("parsed" in window)`) {
		t.Error("the page may parse text as HTML")
	}
}

// TestProxies checks the states of proxies, and which control plane plans.
func TestProxies(t *testing.T) {
	v := fleetView(2)
	v.Status.Planner = control.Planner{Shared: true, Self: "a", Holder: "b"}
	v.Status.Groups = []control.Group{{Nodes: 2, Epoch: 3, Reason: "watched"}, {Name: "empty", Reason: "nothing"}}
	v.Status.Nodes = nil
	testkit.NoError(t, json.Unmarshal([]byte(`[
		{"id": "edge", "state": "current", "connected": true, "current": true, "types": {"Cluster": {"acked": 2, "pending": 1}}},
		{"id": "old", "state": "refuses", "connected": true, "last_error": "no such field", "nacks": 2}, {"id": "gone", "state": "gone"},
		{"id": "slow", "state": "late", "connected": true}, {"id": "other", "state": "unlisted", "connected": true}, {"id": "new", "state": "following", "connected": true}
	]`), &v.Status.Nodes))
	b := openTab(t, 1440, 900)
	b.open(newSite(t, &scripted{view: v}).url())
	rows := value[string](b, `[...document.querySelectorAll("#proxies tbody tr")].map(row => [0, 1, 3, 4].map(i => row.children[i].textContent).join(" ")).join(", ")`)
	if want := "edge ●current 1 0, old ✕refusesno such field 0 2, gone ✕gone 0 0, slow ✕late 0 0, other ◐unlisted 0 0, new ◐following 0 0"; rows != want {
		t.Errorf("proxies %q, want %q", rows, want)
	}
	if got := b.text("#proxies-note"); !strings.Contains(got, "plan 3, 2 proxies: watched") || strings.Contains(got, "nothing") {
		t.Errorf("note %q", got)
	}
	if got := b.text("#detail"); !strings.HasSuffix(got, "This control plane, a, follows b.") {
		t.Errorf("detail %q", got)
	}
}

// TestModels checks that another model can be chosen.
func TestModels(t *testing.T) {
	v := fleetView(4)
	other := fleetView(2)
	other.model().Name = "qwen/other model"
	v.Status.Models, v.Models = append(v.Status.Models, other.Status.Models...), append(v.Models, other.Models...)
	b := openTab(t, 1440, 900)
	b.open(newSite(t, &scripted{view: v}).url())
	b.set("#model", other.model().Name)
	b.script(`document.querySelector("#model").dispatchEvent(new Event("change"))`)
	b.waitFor("its replicas", `document.querySelectorAll("#replicas tbody tr").length === 2`)
	b.run(chromedp.Reload())
	b.waitFor("the choice after a reload", `document.querySelector("#model")?.value === "qwen/other model" && document.querySelectorAll("#replicas tbody tr").length === 2`)
	b.noErrors()
}

// TestWhatIf checks the form: an error at its field, which gets the focus, and then a plan.
func TestWhatIf(t *testing.T) {
	b := openTab(t, 1440, 900)
	b.open(newSite(t, &scripted{view: fleetView(8)}).url())
	ask := func(replicas string) {
		t.Helper()
		b.set("#whatif-replicas", replicas)
		b.click("#whatif button")
	}
	for text, want := range map[string]string{"none": `replicas: "none": must be a whole number`, "1": "replicas: 1 cannot carry this traffic"} {
		ask(text)
		b.waitFor("the error", fmt.Sprintf(`document.querySelector("#whatif-replicas-error").textContent.startsWith(%q)`, want))
		if !value[bool](b, `document.activeElement.id === "whatif-replicas" && document.activeElement.getAttribute("aria-invalid") === "true" && document.querySelector("#whatif-answer").hidden`) {
			t.Errorf("%s: the field is not marked, or has no focus", text)
		}
	}
	ask("6")
	b.waitFor("the plan", `!document.querySelector("#whatif-answer").hidden && document.querySelectorAll("#whatif-stages tbody tr").length === 2`)
	if got := b.text("#whatif-answer"); !strings.Contains(got, "6 replicas") || !strings.Contains(got, "−25 %") || !strings.Contains(got, "proven optimal") {
		t.Errorf("the answer is %q", got)
	}
	if value[bool](b, `document.querySelector("#whatif-replicas").hasAttribute("aria-invalid")`) {
		t.Error("the field is still marked")
	}
	b.noErrors()
}

// TestKeyboard checks that Tab reaches every control, shows where it is, and comes round again, also
// while the page is updated.
func TestKeyboard(t *testing.T) {
	v := fleetView(8)
	v.Status.Faults = []control.Fault{{Kind: "replica", Object: "r3", Text: "the engine does not answer"}, {Kind: "rollout", Object: "plan", Text: "refused"}}
	b := openTab(t, 1440, 900)
	b.open(newSite(t, &scripted{view: v}).url())
	controls := value[int](b, `[...document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")].filter(e => e.checkVisibility()).length`)
	seen := map[string]int{}
	for range controls {
		b.run(chromedp.KeyEvent(kb.Tab))
		where := value[string](b, `(e => e === document.body ? "" : [e.tagName, e.id || e.getAttribute("aria-label") || e.textContent].join(" "))(document.activeElement)`)
		seen[where]++
		if !value[bool](b, `(e => e === document.body || getComputedStyle(e).outlineStyle !== "none")(document.activeElement)`) {
			t.Errorf("%s has the focus and does not show it", where)
		}
	}
	if len(seen) < controls-1 || seen["INPUT whatif-rate"] != 1 || controls < 15 {
		t.Errorf("%d of %d controls were reached: %v", len(seen), controls, seen)
	}
	b.noErrors()
}

// TestThousandReplicas checks that 1,000 replicas are all there, in few elements, and that an update
// of one of them changes no others.
func TestThousandReplicas(t *testing.T) {
	source := &scripted{view: fleetView(1000)}
	b := openTab(t, 1440, 900)
	b.open(newSite(t, source).url())
	if n := value[int](b, `document.querySelectorAll("#replicas tbody tr").length`); n != 1000 {
		t.Errorf("%d replicas are shown", n)
	}
	if n := value[int](b, `document.querySelectorAll("*").length`); n > 30_000 {
		t.Errorf("the page has %d elements", n)
	}
	t.Logf("the last update took %.1f ms", value[float64](b, `performance.getEntriesByName("cascade-view")[0].duration`))
	b.script(`window.changed = new Set(); new MutationObserver(list => list.forEach(m => changed.add((m.target.closest ? m.target : m.target.parentElement).closest("tr")))).observe(document.querySelector("#replicas tbody"), {subtree: true, childList: true, characterData: true, attributes: true})`)
	source.edit(func(v *fakePage) { v.replica(500).Running = 4321 })
	b.waitFor("the update", `document.querySelector("#replicas").textContent.includes("4,321")`)
	if n := value[int](b, `changed.size`); n != 1 {
		t.Errorf("%d rows changed", n)
	}
	b.run(chromedp.SendKeys(chromedp.CSS("#filter"), "node-12"))
	b.waitFor("the filter", `document.querySelectorAll("#replicas tbody tr").length < 1000`)
	if got := b.text("#replicas-note"); !strings.Contains(got, "48 shown") { // node-12 and node-120 to node-124, eight replicas each
		t.Errorf("note %q", got)
	}
	b.noErrors()
}

// BenchmarkThousandReplicas is the time from the navigation to a page that shows 1,000 replicas, and
// that of an update.
func BenchmarkThousandReplicas(b *testing.B) {
	s := newSiteEvery(b, &scripted{view: fleetView(1000)}, time.Second)
	page := openTab(b, 1440, 900)
	load, render := 0.0, 0.0
	for b.Loop() {
		page.open(s.url())
		first := value[float64](page, `(e => e.startTime + e.duration)(performance.getEntriesByName("cascade-view")[0])`)
		load += first - value[float64](page, `performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd`)
		page.waitFor("an update", fmt.Sprintf(`performance.getEntriesByName("cascade-view")[0].startTime > %f`, first))
		render += value[float64](page, `performance.getEntriesByName("cascade-view")[0].duration`)
	}
	b.ReportMetric(load/float64(b.N), "ms/first-view")
	b.ReportMetric(render/float64(b.N), "ms/update")
}

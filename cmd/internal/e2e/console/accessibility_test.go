package console

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// axe returns the source of axe-core, and skips the test without it.
func axe(t *testing.T) string {
	paths, err := filepath.Glob(filepath.Join(root, ".cache", "axe", "lib", "python3.*", "site-packages", "axe_playwright_python", "axe.min.js"))
	testkit.NoError(t, err)
	if len(paths) == 0 {
		testkit.Skip(t, testkit.Unavailable{What: "axe-core is not in .cache/axe", Remedy: "run `make axe`", InCI: true})
	}
	return string(testkit.Must(os.ReadFile(paths[0])))
}

// bypassPolicy lets the test inject scripts, which the page's policy would refuse.
func (b *tab) bypassPolicy() {
	b.Helper()
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true})
		return err
	}))
}

// violation is one that axe-core found.
type violation struct {
	ID      string   `json:"id"`
	Help    string   `json:"help"`
	Targets []string `json:"targets"`
}

// TestAccessibility scans the page for violations of WCAG 2.2 AA, with faults and with an answer of
// the what-if: on a desktop, and with CASCADE_TEST_ALL=1 in dark colours and on a phone, too.
func TestAccessibility(t *testing.T) {
	scanner := axe(t)
	v := fleetView(12)
	breakFleet(&v)
	other := fleetView(1)
	other.model().Name = "other"
	v.Status.Models, v.Models = append(v.Status.Models, other.Status.Models...), append(v.Models, other.Models...)
	s := newOrderSite(t, &scripted{view: v}, "0123456789abcdef", func(http.ResponseWriter, *http.Request) {})
	for _, tc := range []struct {
		name, scheme  string
		width, height int64
	}{{"desktop", "light", 1440, 900}, {"dark", "dark", 1440, 900}, {"phone", "light", 390, 844}}[:testkit.Size(1, 3)] {
		b := openTab(t, tc.width, tc.height)
		b.colours(tc.scheme)
		b.bypassPolicy()
		b.open(s.url())
		b.set("#whatif-replicas", "6")
		b.click("#whatif button")
		b.waitFor("the plan", `!document.querySelector("#whatif-answer").hidden`)
		b.script(`document.querySelector("#order-object-error").textContent = "r3: unknown"; document.querySelector("#whatif-rate-error").textContent = "rate: must be a number"; document.querySelector("#slots details").open = true`)
		b.script(scanner)
		for _, f := range b.scan(`runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]`) {
			t.Errorf("%s: %s (%s): %s", tc.name, f.ID, f.Help, strings.Join(f.Targets[:min(4, len(f.Targets))], "; "))
		}
		if wide := value[int](b, "document.documentElement.scrollWidth"); int64(wide) > tc.width {
			t.Errorf("%s: the page is %d wide and scrolls sideways; the window is %d", tc.name, wide, tc.width)
		}
		if n := value[int](b, `document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]").length`); n != 1 {
			t.Errorf("%s: %d live regions, and only the verdict should be one", tc.name, n)
		}
		// A scan that cannot fail shows nothing.
		b.script(`document.querySelector("#detail").style.color = "#777"; document.querySelector("label[for=filter]").htmlFor = ""; document.querySelector("#filter").placeholder = ""`)
		for _, rule := range []string{"color-contrast", "label"} {
			if found := b.scan(`runOnly: {type: "rule", values: ["` + rule + `"]}`); len(found) != 1 {
				t.Errorf("%s: the scan does not find a violation of %s", tc.name, rule)
			}
		}
	}
}

// scan returns the violations that axe-core finds.
func (b *tab) scan(options string) []violation {
	b.Helper()
	return result(b, chromedp.Evaluate[[]violation](`axe.run(document, {resultTypes: ["violations"], `+options+`}).then(r => r.violations.map(v =>
		({id: v.id, help: v.help, targets: v.nodes.map(n => n.target.join(" ") + ": " + (n.any[0]?.message ?? n.all[0]?.message ?? n.none[0]?.message ?? ""))})))`, chromedp.EvalAwaitPromise))
}

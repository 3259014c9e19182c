package console

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	book "github.com/cascadeinfer/cascade/cmd/internal/docsite/site"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestBookAccessibility opens pages of the documentation's static site, in light and dark colours and on a phone: they
// have no violation of WCAG 2.2 AA, do not scroll sideways, and log no error.
func TestBookAccessibility(t *testing.T) {
	testkit.SkipSlow(t)
	scanner := axe(t)
	dir := filepath.Join(t.TempDir(), "site")
	testkit.NoError(t, testkit.Must(book.Build(os.DirFS(root))).Write(dir))
	server := httptest.NewServer(http.FileServer(http.Dir(dir))) // axe-core reads no style from files
	t.Cleanup(server.Close)
	for _, tc := range []struct {
		name, scheme  string
		width, height int64
	}{{"desktop", "light", 1440, 900}, {"dark", "dark", 1440, 900}, {"phone", "light", 390, 844}} {
		b := openTab(t, tc.width, tc.height)
		b.colours(tc.scheme)
		for _, page := range []string{"index.html", "concepts.html", "afternoon-with-vllm.html", "kubernetes.html", "mesh.html", "write-a-policy.html", "operate.html", "reference/cli.html",
			"reference/config.html", "reference/metrics.html", "reference/abi.html", "repository/README.html", "repository/deploy/vllm/README.html", "repository/deploy/kubernetes/index.html"} {
			if _, err := os.Stat(filepath.Join(dir, page)); err != nil {
				page = strings.Replace(page, "index.html", "README.html", 1) // of a folder that has one
			}
			b.run(chromedp.Navigate(server.URL + "/" + page))
			b.script(scanner)
			for _, f := range b.scan(`runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]`) {
				t.Errorf("%s, %s: %s (%s): %s", page, tc.name, f.ID, f.Help, strings.Join(f.Targets[:min(4, len(f.Targets))], "; "))
			}
			if wide := value[int](b, "document.documentElement.scrollWidth"); int64(wide) > tc.width {
				t.Errorf("%s, %s: the page is %d wide and scrolls sideways; the window is %d", page, tc.name, wide, tc.width)
			}
		}
		// A scan that cannot fail shows nothing.
		b.script(`Object.assign(document.querySelector("main h1").style, {color: "#bbb", background: "#ddd"})`)
		if found := b.scan(`runOnly: {type: "rule", values: ["color-contrast"]}`); len(found) != 1 {
			t.Errorf("%s: the scan does not find a text with little contrast", tc.name)
		}
		b.noErrors()
	}
}

package webpage

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// sample is a page with everything that a page may have.
var sample = Page{
	Title: "A <report> & its \"parts\"", Summary: []string{"One paragraph.", "Another one, with 1 < 2."},
	Sections: []Section{
		{
			ID: "one", Title: "First", Paragraphs: []string{"Text."}, List: []string{"an item", "a second <item>"},
			Charts: []Chart{
				{Title: "Latency", X: "load", Y: "seconds", LogY: true, Curves: []Curve{
					{Name: "a", Points: []report.XY{{X: 0.2, Y: 0.01}, {X: 0.8, Y: 0.1}, {X: 1.2, Y: 12}}},
					{Name: "b", Points: []report.XY{{X: 0.2, Y: 0}, {X: 0.8, Y: 0.2}, {X: 1.2, Y: math.NaN()}}},
				}},
				{Title: "Errors", X: "error", Y: "share", Steps: true, Curves: []Curve{{Name: "c", Points: []report.XY{{X: -1, Y: 0}, {X: 0, Y: 0.9}, {X: 1, Y: 0.1}}}}},
				{Title: "Empty", X: "x", Y: "y"},
			},
			Tables: []report.Table{{Title: "Figures", Header: []string{"system", "mean"}, Left: 1, Rows: [][]string{{"a", "1.0 ms"}, {strings.Repeat("long ", 20), "2"}}, Notes: []string{"A note."}}},
		},
		{ID: "text", Title: "Text", Tables: []report.Table{{Header: []string{"claim", "seen"}, Left: 2, Rows: [][]string{{"faster", "no"}}}}},
		{ID: "two", Title: "Second", Tables: []report.Table{{Header: slices.Repeat([]string{"wide column"}, 30), Rows: [][]string{slices.Repeat([]string{"figure"}, 30)}}}},
	},
}

func write(t *testing.T, f func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, f(&b))
	return b.String()
}

// TestPage compares both forms with golden files, and checks that the page needs nothing from elsewhere and has
// no fixed width.
func TestPage(t *testing.T) {
	page, markdown := write(t, sample.HTML), write(t, sample.Markdown)
	testkit.CompareGolden(t, "testdata/page.html", []byte(page))
	testkit.CompareGolden(t, "testdata/page.md", []byte(markdown))
	if again := write(t, sample.HTML); again != page {
		t.Error("written again, the page has other bytes")
	}
	for _, bad := range []string{`(?i)\b(src|href)="?[a-z]+:`, `<script`, `@import`, `url\(`, `<(svg|table|figure|img)[^>]*\bwidth=`, `(^|[^-])width: *[0-9.]+px`, `NaN|Inf`} {
		if found := regexp.MustCompile(bad).FindString(page); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
	for _, want := range []string{`name="viewport"`, "prefers-color-scheme: dark", "overflow-x: auto", `href="#two"`, `id="two"`, "A &lt;report&gt;", "a second &lt;item&gt;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestElementsAreClosed reads the page's body as XML, which HTML of this template is.
func TestElementsAreClosed(t *testing.T) {
	page := write(t, sample.HTML)
	d := xml.NewDecoder(strings.NewReader(page[strings.Index(page, "<body>"):strings.Index(page, "</html>")]))
	d.Entity = xml.HTMLEntity
	tables, curves := 0, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			switch e.Name.Local {
			case "table":
				tables++
			case "path":
				for _, a := range e.Attr {
					if a.Name.Local == "class" && strings.HasPrefix(a.Value, "curve") {
						curves++
					}
				}
			}
		}
	}
	if tables != 3 || curves != 6 { // each of three curves, and its line in the legend
		t.Errorf("%d tables and %d curves, want 3 and 6", tables, curves)
	}
}

// TestDrawing checks coordinates: what is greater lies higher and further right, inside of the axes.
func TestDrawing(t *testing.T) {
	d := Chart{Curves: []Curve{{Points: []report.XY{{X: 1, Y: 0}, {X: 3, Y: 10}}}}}.Drawing()
	if got := d.Shapes[0].Path; got != "M52.0 222.0L392.0 22.0" {
		t.Errorf("the curve is %q", got)
	}
	if got := d.YTicks; len(got) != 6 || got[0].Label != "0" || got[5].Label != "10" || got[5].At != "22.0" {
		t.Errorf("ticks %+v", got)
	}
	d = Chart{LogY: true, Curves: []Curve{{Points: []report.XY{{X: 1, Y: 1}, {X: 2, Y: 10}, {X: 3, Y: 100}, {X: 4, Y: 0}}}}}.Drawing()
	if got := len(d.Shapes[0].Points); got != 3 {
		t.Errorf("%d points are drawn on a logarithmic axis, want 3", got)
	}
	var labels []string
	for _, tick := range d.YTicks {
		labels = append(labels, tick.Label)
	}
	if want := []string{"1", "2", "5", "10", "20", "50", "100"}; !slices.Equal(labels, want) {
		t.Errorf("labels %q, want %q", labels, want)
	}
	d = Chart{LogY: true, Curves: []Curve{{Points: []report.XY{{X: 1, Y: 0.021}, {X: 2, Y: 0.038}}}}}.Drawing()
	if got := len(d.YTicks); got < 3 || d.YTicks[0].Label != "0.025" {
		t.Errorf("a short logarithmic axis has ticks %+v", d.YTicks)
	}
	d = Chart{Steps: true, Curves: []Curve{{Points: []report.XY{{X: 0, Y: 1}, {X: 1, Y: 2}}}}}.Drawing()
	if got := strings.Count(d.Shapes[0].Path, "L"); got != 2 || len(d.Shapes[0].Points) != 0 {
		t.Errorf("stairs %q, %v", d.Shapes[0].Path, d.Shapes[0].Points)
	}
}

// TestInBrowser opens the page in a headless Chromium, in a frame as wide as a phone: everything is laid out, and
// nothing but tables is wider than the frame.
func TestInBrowser(t *testing.T) {
	testkit.SkipSlow(t)
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		testkit.Skip(t, testkit.Unavailable{What: "Chromium is not installed", Remedy: "install it (Debian: chromium)"})
	}
	inner := write(t, sample.HTML)
	frame := `<!doctype html><title>waiting</title><iframe width="360" height="740" srcdoc="` + html.EscapeString(inner) + `"></iframe><script>
onload = () => { const d = document.querySelector("iframe").contentDocument, e = d.documentElement
  const charts = [...d.querySelectorAll("figure > svg")].filter(s => s.getBoundingClientRect().width > 250 && s.getBoundingClientRect().height > 100).length
  const scrolls = [...d.querySelectorAll(".scroll")].filter(s => s.scrollWidth > s.clientWidth).length
  document.title = "laid out: " + (e.scrollWidth <= e.clientWidth ? "fits" : "overflows to " + e.scrollWidth) + ", " + charts + " charts, " + scrolls + " scrolling tables, text " + getComputedStyle(d.body).fontSize }
</script>`
	dir := t.TempDir()
	path := filepath.Join(dir, "frame.html")
	testkit.NoError(t, os.WriteFile(path, []byte(frame), 0o644))
	c := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(dir, "profile"), "--virtual-time-budget=5000", "--dump-dom", "file://"+path)
	c.WaitDelay = 10 * time.Second
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	title := regexp.MustCompile(`<title>[^<]*</title>`).FindString(string(out))
	if want := "<title>laid out: fits, 3 charts, 1 scrolling tables, text 16px</title>"; title != want {
		t.Errorf("the browser says %s, want %s", title, want)
	}
}

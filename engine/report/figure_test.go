package report

import (
	"encoding/xml"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// label is a text of a picture and the box that it takes.
type label struct {
	text                     string
	left, top, right, bottom float64
}

// readPicture returns the labels of a picture that are not turned, where its first grid begins, and its size.
func readPicture(t *testing.T, p Picture) (labels []label, grid, width, height float64) {
	t.Helper()
	var doc struct {
		Width  float64 `xml:"width,attr"`
		Height float64 `xml:"height,attr"`
		Paths  []struct {
			D    string `xml:"d,attr"`
			Line string `xml:"stroke,attr"`
		} `xml:"path"`
		Texts []struct {
			X      float64 `xml:"x,attr"`
			Y      float64 `xml:"y,attr"`
			Size   float64 `xml:"font-size,attr"`
			Anchor string  `xml:"text-anchor,attr"`
			Text   string  `xml:",chardata"`
		} `xml:"text"`
	}
	testkit.NoError(t, xml.Unmarshal(p.svg, &doc))
	grid = math.Inf(1)
	for _, path := range doc.Paths {
		if path.Line == gridColour || path.Line == inkColour {
			_, y, _ := strings.Cut(path.D[:strings.Index(path.D, "L")], " ")
			at, err := strconv.ParseFloat(y, 64)
			testkit.NoError(t, err)
			grid = min(grid, at)
		}
	}
	for _, text := range doc.Texts {
		wide := textWidth(text.Text, text.Size)
		left := text.X - map[string]float64{"start": 0, "middle": 0.5, "end": 1}[text.Anchor]*wide
		labels = append(labels, label{text.Text, left, text.Y - 0.75*text.Size, left + wide, text.Y + 0.2*text.Size})
	}
	return labels, grid, doc.Width, doc.Height
}

// checkLayout checks that all labels of a picture lie inside it, that none covers another, and that the legend is above
// the grids.
func checkLayout(t *testing.T, p Picture, legend []string) {
	t.Helper()
	labels, grid, width, height := readPicture(t, p)
	for i, a := range labels {
		if a.left < 0 || a.right > width || a.top < 0 || a.bottom > height {
			t.Errorf("%q is not inside the picture: %+v of %v × %v", a.text, a, width, height)
		}
		for _, b := range labels[:i] {
			if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
				t.Errorf("%q covers %q", a.text, b.text)
			}
		}
		for _, name := range legend {
			if strings.HasPrefix(a.text, name) && a.bottom > grid {
				t.Errorf("%q is in the grid", a.text)
			}
		}
	}
}

// TestDistributionTail checks that p95 and p99 can be read: by their lines, which have room, and in the legend.
func TestDistributionTail(t *testing.T) {
	p, err := Distribution(runs(t), TTFT)
	testkit.NoError(t, err)
	labels, _, _, _ := readPicture(t, p)
	at := map[string]float64{}
	for _, l := range labels {
		at[l.text] = l.bottom
	}
	for _, pair := range [][2]string{{"50 %", "90 %"}, {"90 %", "95 %"}, {"95 %", "99 %"}} {
		if at[pair[1]] == 0 || at[pair[0]]-at[pair[1]] < 30 {
			t.Errorf("from %s to %s are %.0f points", pair[0], pair[1], at[pair[0]]-at[pair[1]])
		}
	}
	if at["cascade: p50 3.04 s, p95 12.0 s, p99 47.2 s"] == 0 {
		t.Errorf("the legend lacks the percentiles: %v", at)
	}
}

// TestManySystems draws a legend that needs several lines, and names that need room beside the axis.
func TestManySystems(t *testing.T) {
	results := runs(t)
	var names []string
	for i := range 9 {
		r := results[i%2]
		r.Name, r.Void = "a system with quite a long name, number "+strconv.Itoa(i), ""
		r.Reuse = &replay.Reuse{HitRate: 0.1 * float64(i)}
		results, names = append(results, r), append(names, r.Name)
	}
	for _, draw := range []func() (Picture, error){
		func() (Picture, error) { return Distribution(results[2:], E2E) },
		func() (Picture, error) { return Timeline(results[2:]) },
		func() (Picture, error) { return ByLength(results[2:], TPOT) },
	} {
		p, err := draw()
		testkit.NoError(t, err)
		checkLayout(t, p, names)
	}
	p, err := ReusePicture(results[2:])
	testkit.NoError(t, err)
	checkLayout(t, p, nil)
}

// TestTimeAxis checks that axes of any width have at least two labels, and round ones.
func TestTimeAxis(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{0.02, 0.025, "20 ms 22 ms 24 ms 26 ms"},
		{0.02, 0.9, "20 ms 50 ms 100 ms 200 ms 500 ms"},
		{1e-4, 90, "100 µs 1 ms 10 ms 100 ms 1 s 10 s"},
		{1, 1, "960 ms 980 ms 1 s 1.02 s 1.04 s"},
	} {
		var got []string
		for _, tick := range timeAxis("", c.low, c.high).Ticks {
			if tick.Label != "" {
				got = append(got, tick.Label)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("from %v to %v: %s, want %s", c.low, c.high, text, c.want)
		}
	}
}

// TestEscape checks that names cannot break the document.
func TestEscape(t *testing.T) {
	p, err := Figure{Title: `<b>&"`, Charts: []Chart{{X: LinearAxis("x", 0, 1, ShortCount), Y: LinearAxis("y", 0, 1, ShortCount)}}}.Draw()
	testkit.NoError(t, err)
	if labels, _, _, _ := readPicture(t, p); labels[0].text != `<b>&"` {
		t.Errorf("%q", labels[0].text)
	}
}

// TestCrowdedAxis leaves out the labels that would cover others.
func TestCrowdedAxis(t *testing.T) {
	names := strings.Fields(strings.Repeat("a-long-name ", 30))
	p, err := Figure{Title: "crowded", Width: 300, Charts: []Chart{{X: NameAxis("x", names, false), Y: NameAxis("y", names, true), Height: 100}}}.Draw()
	testkit.NoError(t, err)
	checkLayout(t, p, nil)
	if labels, _, _, _ := readPicture(t, p); len(labels) < 8 {
		t.Errorf("%d labels", len(labels))
	}
}

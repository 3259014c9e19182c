package interval

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestDraw: figures that were not measured are left out, and bars begin at 0 at the earliest.
func TestDraw(t *testing.T) {
	wide, none := Interval{Mean: 0.1, Low: -0.2, High: 0.4, Runs: 5}, Interval{}
	unmeasured := Panel{Figure: "not measured", Systems: []string{"a"}, Series: []Series{{"10/s", []Interval{none}}}}
	p := testkit.Must(Draw([]Panel{unmeasured, {Figure: "TTFT p95", Systems: []string{"first", "second"},
		Series: []Series{{"10/s", []Interval{wide, none}}, {"15/s", []Interval{none, wide}}}}}))
	var svg strings.Builder
	testkit.NoError(t, p.Write(&svg))
	for _, text := range []string{"TTFT p95", "first", "second", "10/s", "15/s", "400 ms"} {
		if !strings.Contains(svg.String(), ">"+text+"<") {
			t.Errorf("the picture does not say %q", text)
		}
	}
	if strings.Contains(svg.String(), "not measured") || strings.Contains(svg.String(), ">-") || strings.Count(svg.String(), "<circle") != 4 {
		t.Errorf("not two intervals, and two keys:\n%s", &svg)
	}
	if _, err := Draw([]Panel{unmeasured}); !errors.Is(err, report.ErrNoData) {
		t.Errorf("nothing measured: %v", err)
	}
}

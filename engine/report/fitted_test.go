package report

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestFitted(t *testing.T) {
	p, err := Fitted("κ", "Lmax − Lmean in tokens", "time in µs", []XY{{0, 10}, {1000, 12}, {4000, 17.5}}, 10, 0.0019)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []Format{SVG, PNG} {
		var out bytes.Buffer
		if err := p.Write(&out, format); err != nil || out.Len() < 1000 || format == SVG && !strings.Contains(out.String(), "Lmax") {
			t.Errorf("%s: %d bytes, %v", format, out.Len(), err)
		}
	}
	if _, err := Fitted("", "", "", nil, 0, 0); !errors.Is(err, ErrNoData) {
		t.Errorf("nothing is drawn: %v", err)
	}
	if _, err := Fitted("", "", "", []XY{{1, math.NaN()}}, 0, 0); err == nil {
		t.Error("no number is drawn")
	}
}

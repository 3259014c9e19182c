package report

import (
	"math"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// textLines divides a label at line breaks.
func textLines(text string) []string { return strings.Split(text, "\n") }

// textWidth returns an upper estimate of the width of a text's widest line in a sans-serif face.
func textWidth(text string, size float64) float64 {
	widest := 0.0
	for _, line := range textLines(text) {
		width := 0.0
		for _, r := range line {
			switch {
			case strings.ContainsRune("ijlI.,:;|!'() []/tf", r):
				width += 0.33
			case r >= 'A' && r <= 'Z', strings.ContainsRune("mw%→", r):
				width += 0.82
			default:
				width += 0.57
			}
		}
		widest = max(widest, width)
	}
	return widest * size
}

// wrapWords breaks a text at spaces into lines that fit. A word that does not fit has a line of its own.
func wrapWords(text string, fits func(line string) bool) string {
	lines, line := "", ""
	for _, word := range strings.Fields(text) {
		if line != "" && !fits(line+" "+word) {
			lines, line = lines+line+"\n", ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return lines + line
}

// LinearAxis returns an axis from low to high with about five round values, printed by label.
func LinearAxis(name string, low, high float64, label func(float64) string) Axis {
	if !(high > low) {
		high = low + 1
	}
	a := Axis{Label: name, Low: low, High: high}
	for _, v := range roundValues(low, high) {
		a.Ticks = append(a.Ticks, Tick{v, label(v)})
	}
	return a
}

// roundValues returns about five multiples of 1, 2 or 5 times a power of ten.
func roundValues(low, high float64) (values []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, times := range [...]float64{2, 2.5, 2} {
		if (high-low)/step <= 7 {
			break
		}
		step *= times
	}
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		values = append(values, i*step+0) // not a negative zero
	}
	return values
}

// timeAxis returns an axis of log₁₀ of seconds, with 1, 2 and 5 of each decade, or round times if it is short.
func timeAxis(name string, low, high float64) Axis {
	low, high = math.Log10(low)-0.02, math.Log10(high)+0.02 // equal times need some width around them
	a := Axis{Label: name, Low: low, High: high}
	if high-low < 0.8 {
		for _, v := range roundValues(math.Pow(10, low), math.Pow(10, high)) {
			a.Ticks = append(a.Ticks, Tick{math.Log10(v), ShortTime(v)})
		}
		return a
	}
	for decade := math.Floor(low); decade <= math.Ceil(high); decade++ {
		for d := 1.0; d < 10; d++ {
			at, label := decade+math.Log10(d), ""
			if d == 1 || high-low <= 3.5 && (d == 2 || d == 5) {
				label = ShortTime(d * math.Pow(10, decade))
			}
			if at >= low && at <= high {
				a.Ticks = append(a.Ticks, Tick{at, label})
			}
		}
	}
	return a
}

// tail is where a share of requests lies on a tail axis, which gives each nine equal room.
func tail(share float64) float64 { return -math.Log10(1 - share) }

// tailAxis returns an axis of shares from which the 95th and the 99th percentile can be read.
func tailAxis(name string) Axis {
	a := Axis{Label: name, High: tail(0.9915)}
	for _, percent := range [...]float64{0, 50, 75, 90, 95, 99} {
		a.Ticks = append(a.Ticks, Tick{tail(percent / 100), shortShare(percent / 100)})
	}
	return a
}

// lengthAxis returns an axis of log₂ of tokens from low to high, with powers of two.
func lengthAxis(name string, low, high float64) Axis {
	a := Axis{Label: name, Low: math.Log2(low), High: math.Log2(high)}
	for i := int(math.Ceil(a.Low - 1e-3)); float64(i) <= a.High+1e-3; i++ {
		t := Tick{At: float64(i)}
		if a.High-a.Low <= 9 || i%2 == 0 {
			t.Label = (policies.Tokens(1) << i).Grouped()
		}
		a.Ticks = append(a.Ticks, t)
	}
	return a
}

// NameAxis returns an axis with a name at each whole number. Rows are named from the top.
func NameAxis(label string, names []string, rows bool) Axis {
	a := Axis{Label: label, Low: -0.6, High: float64(len(names)) - 0.4, NoLines: true}
	for i := range names {
		name := names[i]
		if rows {
			name = names[len(names)-1-i]
		}
		a.Ticks = append(a.Ticks, Tick{float64(i), name})
	}
	return a
}

// ShortTime prints a round time without needless zeros.
func ShortTime(s float64) string {
	return timeWithUnit(s, func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) })
}

// ShortCount prints a number, thousands as k.
func ShortCount(v float64) string {
	if math.Abs(v) >= 10000 {
		return strconv.FormatFloat(v/1000, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// shortShare prints a share in percent.
func shortShare(v float64) string { return strconv.FormatFloat(100*v, 'g', 3, 64) + " %" }

package fleetview

import (
	"math"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/cascadeinfer/cascade/policies"
)

// axisStart is the length at the left end of the axis: shorter ones do not differ in cost.
const axisStart = 16

// axisCell returns the cell of a length on a logarithmic axis of so many cells that ends at limit.
func axisCell(length, limit policies.Tokens, cells int) int {
	if length <= axisStart || limit <= axisStart {
		return 0
	}
	at := math.Log2(float64(length)/axisStart) / math.Log2(float64(limit)/axisStart)
	return min(int(math.Round(at*float64(cells))), cells)
}

// axis draws the stages over the lengths, and the lengths at which they begin. Each stage has at least one
// cell, so that none is missing.
func (d *drawing) axis() Frame {
	s, cells := d.shown, d.m.width-1
	if len(s.Stages) == 0 {
		return Frame{line{{"no plan yet", faint}}, nil}
	}
	const dash = "─"
	starts := make([]int, len(s.Stages)+1)
	for i, st := range s.Stages {
		starts[i] = axisCell(st.Low, s.Context, cells)
		if i > 0 {
			starts[i] = max(starts[i], starts[i-1]+1)
		}
	}
	starts[len(s.Stages)] = cells
	for i := len(s.Stages) - 1; i > 0; i-- {
		starts[i] = min(starts[i], starts[i+1]-1)
	}
	var bars line
	labels, used := strings.Builder{}, 0
	for i, st := range s.Stages {
		mark := "├"
		if i > 0 {
			mark = "┼"
		}
		bars = bars.add(faint, mark)
		inner := starts[i+1] - starts[i] - 1
		name := " " + st.Name + " "
		if w := lipgloss.Width(name); w <= inner {
			left := (inner - w) / 2
			bars = bars.add(loadTone(st.Load), strings.Repeat(dash, left)).add(strong, name).
				add(loadTone(st.Load), strings.Repeat(dash, inner-w-left))
		} else {
			bars = bars.add(loadTone(st.Load), strings.Repeat(dash, inner))
		}
		label := st.Low.Grouped()
		if starts[i] >= used && starts[i]+len(label) < cells-len(s.Context.Grouped()) {
			labels.WriteString(strings.Repeat(" ", starts[i]-used) + label)
			used = starts[i] + len(label) + 1
			labels.WriteByte(' ')
		}
	}
	bars = bars.add(faint, "┤")
	limit := s.Context.Grouped()
	labels.WriteString(strings.Repeat(" ", max(0, cells+1-used-len(limit))) + limit)
	return Frame{bars, line{{labels.String(), faint}}}
}

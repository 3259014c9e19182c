package fleetview

import (
	"strings"

	"charm.land/lipgloss/v2"
)

// tone is how a text stands out. Colours are those of the terminal's own palette, which are legible on its
// background, dark or light; words say the same as the colour.
type tone int

const (
	plain  tone = iota
	faint       // labels, and what is out of date
	strong      // titles
	good
	warning
	bad
	badge // the verdict that nothing works
)

// styles are the tones of a terminal.
var styles = [...]lipgloss.Style{
	plain:   lipgloss.NewStyle(),
	faint:   lipgloss.NewStyle().Faint(true),
	strong:  lipgloss.NewStyle().Bold(true),
	good:    lipgloss.NewStyle().Foreground(lipgloss.Green),
	warning: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	bad:     lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	badge:   lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true).Reverse(true),
}

// span is a part of a line.
type span struct {
	text string
	tone tone
}

// line is one line of a frame.
type line []span

// add appends a text.
func (l line) add(t tone, text string) line { return append(l, span{text, t}) }

// note appends what may be cut, if there is anything.
func (l line) note(text string) line {
	if text == "" {
		return l
	}
	return l.add(faint, " "+text)
}

// width returns the cells that the line takes.
func (l line) width() int {
	n := 0
	for _, s := range l {
		n += lipgloss.Width(s.text)
	}
	return n
}

// cut returns the line in at most so many cells.
func (l line) cut(cells int) line {
	if l.width() <= cells {
		return l
	}
	var out line
	for _, s := range l {
		w := lipgloss.Width(s.text)
		if w >= cells { // the last one, with an ellipsis if anything follows
			return append(out, span{strings.TrimRight(fit(s.text+"…", cells), " "), s.tone})
		}
		out, cells = append(out, s), cells-w
	}
	return out
}

// Frame is what a terminal shows: its lines, each at most as wide as the terminal.
type Frame []line

// pad returns the frame with at least so many lines.
func (f Frame) pad(lines int) Frame {
	for len(f) < lines {
		f = append(f, nil)
	}
	return f
}

// String returns the frame without styles.
func (f Frame) String() string {
	var b strings.Builder
	for _, l := range f {
		var text strings.Builder
		for _, s := range l {
			text.WriteString(s.text)
		}
		b.WriteString(strings.TrimRight(text.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// Styled returns the frame with the escape sequences of its styles, without a newline at its end.
func (f Frame) Styled() string {
	lines := make([]string, len(f))
	for i, l := range f {
		var b strings.Builder
		for _, s := range l {
			if s.tone == plain {
				b.WriteString(s.text)
			} else {
				b.WriteString(styles[s.tone].Render(s.text))
			}
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}

package fleetview

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// maxText bounds a text that is shown, in characters.
const maxText = 512

// Clean returns a text from elsewhere as one line that a terminal shows as it is: replicas, models, modules
// and proxies choose their names, and error texts contain what others sent. What controls a terminal, what
// changes the direction of the text or is invisible, and what is not UTF-8 becomes U+FFFD; white space
// becomes a space; the rest of a longer text is left out.
func Clean(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n++; n > maxText {
			b.WriteRune('…')
			break
		}
		switch {
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		case r == utf8.RuneError, !unicode.IsGraphic(r), unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r):
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// fit returns a text in so many cells of a terminal: filled with spaces, or cut with an ellipsis. Names that
// are wider than their characters, such as Chinese ones, take the cells that they take.
func fit(text string, cells int) string {
	width := lipgloss.Width(text)
	if width <= cells {
		return text + strings.Repeat(" ", cells-width)
	}
	if cells < 1 {
		return ""
	}
	var b strings.Builder
	used := 0
	for _, r := range text {
		w := lipgloss.Width(string(r))
		if used+w > cells-1 {
			break
		}
		b.WriteRune(r)
		used += w
	}
	return b.String() + "…" + strings.Repeat(" ", cells-1-used)
}

// fitRight is fit for numbers: it fills on the left.
func fitRight(text string, cells int) string {
	if width := lipgloss.Width(text); width < cells {
		return strings.Repeat(" ", cells-width) + text
	}
	return fit(text, cells)
}

package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table is a table to be written in one of several forms.
type Table struct {
	Title  string
	Header []string
	// Rows have one cell per column. Cells after Left columns are figures and
	// stand to the right.
	Rows [][]string
	Left int
	// Group is how many rows belong together; a line follows each such group
	// in text. 0 draws none.
	Group int
	Notes []string // sentences below the table
}

// The widest table of a terminal; the narrowest cell that is broken into lines, because a figure and its unit stay
// together; and the narrowest column of broken cells in a table that stays wider than that.
const (
	maxTableWidth  = 120
	minBrokenWidth = 16
	minColumnWidth = 24
)

// fit returns a table that takes at most maxTableWidth columns: it breaks headers at spaces, and then the widest cells.
func (t Table) fit() Table {
	rows := append([][]string{t.Header}, t.Rows...)
	full, limits, least, total := make([]int, len(t.Header)), make([]int, len(t.Header)), make([]int, len(t.Header)), 1
	for row, cells := range rows {
		for i, cell := range cells {
			width := text.StringWidth(cell)
			word := width
			if row == 0 || width >= minBrokenWidth {
				word = 0
				for _, w := range strings.Fields(cell) {
					word = max(word, text.StringWidth(w))
				}
			}
			if row > 0 {
				limits[i] = max(limits[i], width)
			}
			full[i], limits[i], least[i] = max(full[i], width), max(limits[i], word), max(least[i], word)
		}
	}
	excess := 1 - maxTableWidth
	for i := range full {
		total += full[i] + 3
		excess += limits[i] + 3
	}
	if total <= maxTableWidth {
		return t
	}
	narrowest := 1
	for i := range least {
		narrowest += least[i] + 3
	}
	if narrowest > maxTableWidth { // one word below the other would not help
		for i := range least {
			least[i] = max(least[i], min(limits[i], minColumnWidth))
		}
	}
	for excess > 0 {
		widest := 0
		for i := range limits {
			if limits[i]-least[i] > limits[widest]-least[widest] {
				widest = i
			}
		}
		cut := min(excess, limits[widest]-least[widest])
		if cut <= 0 {
			break // of figures alone
		}
		limits[widest] -= cut
		excess -= cut
	}
	broken := make([][]string, len(rows))
	for row, cells := range rows {
		for i, cell := range cells {
			if text.StringWidth(cell) > limits[i] {
				cell = wrapWords(cell, func(line string) bool { return text.StringWidth(line) <= limits[i] })
			}
			broken[row] = append(broken[row], cell)
		}
	}
	t.Header, t.Rows = broken[0], broken[1:]
	return t
}

// Text writes the table for a terminal.
func (t Table) Text(w io.Writer) error {
	pretty := t.fit().pretty()
	pretty.SetStyle(table.StyleLight)
	// Headers hold units, whose case matters.
	pretty.Style().Format.Header = text.FormatDefault
	if t.Title != "" {
		pretty.SetTitle("%s", t.Title)
	}
	return t.write(w, pretty.Render())
}

// Markdown writes the table for a README; the title becomes a bold line.
func (t Table) Markdown(w io.Writer) error {
	if t.Title != "" {
		if _, err := fmt.Fprintf(w, "**%s**\n\n", t.Title); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return t.write(w, t.pretty().RenderMarkdown())
}

func (t Table) pretty() table.Writer {
	pretty := table.NewWriter()
	row := func(cells []string) table.Row {
		r := make(table.Row, len(cells))
		for i, c := range cells {
			r[i] = c
		}
		return r
	}
	pretty.AppendHeader(row(t.Header))
	for i, cells := range t.Rows {
		if t.Group > 0 && i > 0 && i%t.Group == 0 {
			pretty.AppendSeparator()
		}
		pretty.AppendRow(row(cells))
	}
	columns := make([]table.ColumnConfig, len(t.Header))
	for i := range columns {
		align := text.AlignRight
		if i < t.Left {
			align = text.AlignLeft
		}
		columns[i] = table.ColumnConfig{Number: i + 1, Align: align, AlignHeader: align}
	}
	pretty.SetColumnConfigs(columns)
	return pretty
}

// WriteTables writes tables for a terminal, with an empty line between them.
func WriteTables(w io.Writer, tables ...Table) error {
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := t.Text(w); err != nil {
			return err
		}
	}
	return nil
}

func (t Table) write(w io.Writer, body string) error {
	if _, err := io.WriteString(w, body+"\n"); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, note := range t.Notes {
		if _, err := io.WriteString(w, "\n"+note+"\n"); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return nil
}

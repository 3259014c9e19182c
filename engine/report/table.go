package report

import (
	"fmt"
	"io"

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

// Text writes the table for a terminal.
func (t Table) Text(w io.Writer) error {
	pretty := t.pretty()
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

// Package webpage writes a report of text, tables and charts as one HTML page that needs nothing else, and as
// Markdown.
//
// The page reads well on a phone (nothing has a fixed width, tables of text become lists and those of
// figures scroll, legends wrap) and in dark mode; its
// charts are inline SVG in the page's colours. The same Page gives the same bytes.
package webpage

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/cascadeinfer/cascade/engine/report"
)

// Page is a report.
type Page struct {
	Title    string
	Summary  []string // paragraphs below the title
	Sections []Section
}

// Section is a part of a report. Markdown has everything but the charts, whose figures a table should show, too.
type Section struct {
	ID         string // of the link to it: letters, digits and hyphens
	Title      string
	Paragraphs []string
	List       []string
	Charts     []Chart
	Tables     []report.Table
}

//go:embed page.html
var pageFile embed.FS

// layout draws a Page; its functions are those of this package.
var layout = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"left": func(t report.Table, column int) bool { return column < t.Left },
	"text": func(t report.Table) bool { return len(t.Header) > 0 && t.Left >= len(t.Header) },
}).ParseFS(pageFile, "page.html"))

// HTML writes the page.
func (p Page) HTML(w io.Writer) error {
	if err := layout.Execute(w, p); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// Markdown writes the page's text and tables.
func (p Page) Markdown(w io.Writer) error {
	var b strings.Builder
	line := func(text string) { b.WriteString(text + "\n\n") }
	line("# " + p.Title)
	for _, text := range p.Summary {
		line(text)
	}
	for _, s := range p.Sections {
		line("## " + s.Title)
		for _, text := range s.Paragraphs {
			line(text)
		}
		for _, text := range s.List {
			b.WriteString("- " + text + "\n")
		}
		if len(s.List) > 0 {
			b.WriteString("\n")
		}
		for _, t := range s.Tables {
			if err := t.Markdown(&b); err != nil {
				return err
			}
			b.WriteString("\n")
		}
	}
	if _, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n"); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

package markdown

import (
	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/util"
)

// scrolling renders what may be wider than a phone, blocks of code and tables, so that it scrolls by itself and the
// keyboard can scroll it.
type scrolling struct{ *html.Renderer }

var _ renderer.NodeRenderer = scrolling{}

// RegisterFuncs implements renderer.NodeRenderer.
func (s scrolling) RegisterFuncs(reg renderer.NodeRendererFuncRegisterer) {
	reg.Register(ast.KindFencedCodeBlock, s.renderCode)
	reg.Register(ast.KindCodeBlock, s.renderCode)
	reg.Register(east.KindTable, renderTable)
	reg.Register(east.KindTableCell, renderCell)
}

func (s scrolling) renderCode(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		_, err := w.WriteString("</code></pre>\n")
		return ast.WalkContinue, err
	}
	if _, err := w.WriteString(`<pre tabindex="0"><code>`); err != nil {
		return ast.WalkStop, err
	}
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		s.Writer.RawWrite(w, line.Value(source))
	}
	return ast.WalkContinue, nil
}

func renderTable(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	tag := "<div class=\"wide\" tabindex=\"0\"><table>\n"
	if !entering {
		tag = "</table></div>\n"
	}
	_, err := w.WriteString(tag)
	return ast.WalkContinue, err
}

// renderCell writes a cell. A header without a text is an empty cell: a header names something.
func renderCell(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	name, attribute := "td", ""
	if n.Parent().Kind() == east.KindTableHeader && n.HasChildren() {
		name = "th"
	}
	if n.(*east.TableCell).Alignment == east.AlignRight {
		attribute = ` class="right"`
	}
	tag := "<" + name + attribute + ">"
	if !entering {
		tag = "</" + name + ">\n"
	}
	_, err := w.WriteString(tag)
	return ast.WalkContinue, err
}

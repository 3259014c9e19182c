// Package markdown reads the repository's Markdown files: their headings, links and fenced blocks. Tests
// check links and run the commands of the book with it.
//
// A fenced block has a language and, after it, words that say what is done with the block:
//
//	```sh                    the test of commands runs it
//	```sh slow               it runs with CASCADE_TEST_ALL=1 only: it needs seconds, or a running fleet
//	```sh unrun: REASON      no test runs it, for a reason that is stated
//	```yaml file: NAME       its text is written to this file before the blocks below it run
//	```text output           what the block above it prints; a line "…" stands for any number of lines
//
// Anchors of headings are those that GitHub gives them, so that a link works there.
package markdown

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// MaxSize is the size of the largest file that Parse reads, in bytes.
const MaxSize = 4 << 20

// Heading is a heading of a document.
type Heading struct {
	Level  int
	Text   string
	Anchor string // unique in the document
}

// Link is a link or an image of a document.
type Link struct {
	Line   int // where its paragraph begins, from 1
	Text   string
	Target string // as it is written
}

// Local reports whether the link leads to a file or an anchor, and not to another host.
func (l Link) Local() bool {
	return !strings.Contains(l.Target, "://") && !strings.HasPrefix(l.Target, "mailto:")
}

// Block is a fenced block.
type Block struct {
	Line     int // of its first line of text, from 1
	Language string
	Words    string // what follows the language
	Text     string // with its last line break
}

// Document is a parsed file. It is not safe for concurrent use.
type Document struct {
	Headings []Heading
	Links    []Link
	Blocks   []Block

	source []byte
}

// engine parses GitHub's tables and links.
var engine = goldmark.New(goldmark.WithExtensions(extension.Table, extension.Linkify, extension.Strikethrough))

// Parse reads a document. It fails for a source larger than MaxSize.
func Parse(source []byte) (*Document, error) {
	if len(source) > MaxSize {
		return nil, fmt.Errorf("parse Markdown: %d bytes exceed the limit of %d", len(source), MaxSize)
	}
	d, root := &Document{source: source}, engine.Parser().Parse(text.NewReader(source))
	used, repeats := make(map[string]bool), make(map[string]int) // of anchors
	err := ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			h := Heading{Level: n.Level, Text: d.plainText(n)}
			first := anchor(h.Text)
			for h.Anchor = first; used[h.Anchor]; h.Anchor = fmt.Sprint(first, "-", repeats[first]) {
				repeats[first]++
			}
			used[h.Anchor] = true
			d.Headings = append(d.Headings, h)
		case *ast.Link:
			d.addLink(n, string(n.Destination))
		case *ast.Image:
			d.addLink(n, string(n.Destination))
		case *ast.FencedCodeBlock:
			b := Block{Text: string(n.Lines().Value(source))}
			if n.Info != nil {
				b.Language, b.Words, _ = strings.Cut(string(n.Info.Value(source)), " ")
				b.Words = strings.TrimSpace(b.Words)
			}
			if n.Lines().Len() > 0 {
				b.Line = d.lineAt(n.Lines().At(0).Start)
			}
			d.Blocks = append(d.Blocks, b)
		}
		return ast.WalkContinue, nil
	})
	return d, err
}

func (d *Document) addLink(n ast.Node, target string) {
	l := Link{Text: d.plainText(n), Target: target}
	for p := n.Parent(); p != nil && l.Line == 0; p = p.Parent() {
		if p.Type() == ast.TypeBlock && p.Lines() != nil && p.Lines().Len() > 0 {
			l.Line = d.lineAt(p.Lines().At(0).Start)
		}
	}
	d.Links = append(d.Links, l)
}

// lineAt returns the number of the line with the byte at an offset.
func (d *Document) lineAt(offset int) int { return 1 + bytes.Count(d.source[:offset], []byte("\n")) }

// plainText returns the text below a node without its markup.
func (d *Document) plainText(n ast.Node) string {
	var out strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			out.Write(c.Segment.Value(d.source))
			if c.SoftLineBreak() {
				out.WriteByte(' ')
			}
		case *ast.String:
			out.Write(c.Value)
		default:
			out.WriteString(d.plainText(c))
		}
	}
	return out.String()
}

// anchor returns GitHub's anchor for the first heading with a text.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

// HasAnchor reports whether a heading has this anchor.
func (d *Document) HasAnchor(name string) bool {
	for _, h := range d.Headings {
		if h.Anchor == name {
			return true
		}
	}
	return false
}

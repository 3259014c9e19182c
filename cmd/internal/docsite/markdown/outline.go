package markdown

import "github.com/yuin/goldmark/ast"

// Part is what a document has below one heading of level 2.
type Part struct {
	Title string
	// Listed are the links in the lists of the part, the first of each item.
	Listed []Link
}

// Parts returns the parts of the document, in their order.
func (d *Document) Parts() (parts []Part) {
	for n := d.root.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level <= 2 {
				parts = append(parts, Part{Title: d.plainText(n)})
			}
		case *ast.List:
			for item := n.FirstChild(); item != nil && len(parts) > 0; item = item.NextSibling() {
				if l, ok := d.firstLink(item); ok {
					p := &parts[len(parts)-1]
					p.Listed = append(p.Listed, l)
				}
			}
		}
	}
	return parts
}

// firstLink returns the first link below a node.
func (d *Document) firstLink(n ast.Node) (Link, bool) {
	for _, l := range d.Links {
		for p := l.node.Parent(); p != nil; p = p.Parent() {
			if p == n {
				return l, true
			}
		}
	}
	return Link{}, false
}

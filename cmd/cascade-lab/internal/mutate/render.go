package mutate

import (
	"cmp"
	"go/ast"
	"slices"
	"strings"
)

// site is a part of a file that a mutant wraps: the text before and after it.
type site struct {
	start, end    int
	before, after string
}

func (f finder) site(n ast.Node, before, after string) {
	f.file.sites = append(f.file.sites, site{int(n.Pos() - f.file.start), int(n.End() - f.file.start), before, after})
}

// instrumented returns the texts of the files with all mutants in them, and of one file
// more, which reads the number of the mutant in force.
func (p *pkg) instrumented() map[string][]byte {
	out := map[string][]byte{}
	for _, f := range p.files {
		// Sites of one node nest in the order in which they were added.
		slices.SortStableFunc(f.sites, func(a, b site) int {
			return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end))
		})
		var b strings.Builder
		var open []site
		at := 0
		closeUntil := func(pos int) {
			for len(open) > 0 && open[len(open)-1].end <= pos {
				s := open[len(open)-1]
				b.Write(f.text[at:s.end])
				b.WriteString(s.after)
				at, open = s.end, open[:len(open)-1]
			}
		}
		for _, s := range f.sites {
			closeUntil(s.start)
			b.Write(f.text[at:s.start])
			b.WriteString(s.before)
			at, open = s.start, append(open, s)
		}
		closeUntil(len(f.text))
		b.Write(f.text[at:])
		out[f.name] = []byte(b.String())
	}
	dir := p.files[0].name[:strings.LastIndex(p.files[0].name, "/")+1]
	out[dir+"cascade_mutant.go"] = []byte("package " + p.name + "\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar cascadeMutant, _ = strconv.Atoi(os.Getenv(\"CASCADE_MUTANT\"))\n")
	return out
}

package mutate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	killed   = "killed"
	survived = "survived"
)

// results are the verdicts on the mutants of one package, in a file that is appended to.
type results struct {
	file     string
	verdicts map[int]string
}

// openResults reads what earlier runs found, if the package is still the same.
func openResults(p *pkg) (*results, error) {
	r := &results{filepath.Join(".cache", "mutate", strings.ReplaceAll(p.dir, "/", "_")+"."+p.digest+".txt"), map[int]string{}}
	text, err := os.ReadFile(r.file)
	if os.IsNotExist(err) {
		return r, os.MkdirAll(filepath.Dir(r.file), 0o755)
	}
	for line := range strings.Lines(string(text)) {
		var id int
		var verdict string
		if n, _ := fmt.Sscan(line, &id, &verdict); n == 2 {
			r.verdicts[id] = verdict
		}
	}
	return r, err
}

func (r *results) add(m mutant, verdict string) error {
	r.verdicts[m.id] = verdict
	f, err := os.OpenFile(r.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, m.id, verdict, m)
	return err
}

// report prints the score of a package and writes the list of its survivors. What was
// written below a survivor, indented, stays with it, and what was listed stays until it runs.
func (r *results) report(p *pkg, drawn []mutant) error {
	name := filepath.Join("cmd", "cascade-lab", "internal", "mutate", "survivors", strings.ReplaceAll(p.dir, "/", "_")+".txt")
	old, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	listed, key := map[string][]string{}, "" // the reasons of the survivors with one text, in their order
	for line := range strings.Lines(string(old)) {
		if !strings.HasPrefix(line, "\t") {
			key = withoutLine(line)
			listed[key] = append(listed[key], "")
		} else if n := len(listed[key]); n > 0 {
			listed[key][n-1] += line
		}
	}
	var b strings.Builder
	run, dead := 0, 0
	for _, m := range p.mutants {
		line, verdict := m.String()+"\n", r.verdicts[m.id]
		key := withoutLine(line)
		switch {
		case verdict == killed:
			run, dead = run+1, dead+1
			continue
		case verdict == survived:
			run++
		case len(listed[key]) == 0: // not run, and not listed
			continue
		}
		b.WriteString(line)
		if reasons := listed[key]; len(reasons) > 0 {
			b.WriteString(reasons[0])
			listed[key] = reasons[1:]
		}
	}
	if run == 0 {
		return nil
	}
	fmt.Printf("| `%s` | %d | %d of %d | %d | %.0f %% |\n", p.dir, len(p.mutants), run, len(drawn), dead, 100*float64(dead)/float64(run))
	if b.Len() == 0 {
		if err := os.Remove(name); !os.IsNotExist(err) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// withoutLine returns a survivor without the place in its file, which moves.
func withoutLine(line string) string {
	at, what, _ := strings.Cut(line, " ")
	file, _, _ := strings.Cut(at, ":")
	return file + " " + what
}

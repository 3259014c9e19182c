package policytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Player handles a command of a scenario, split into words, and returns the lines
// of its output. An error fails the test at that line.
type Player func(words []string) (output []string, err error)

// TestScenarios plays every testdata/*.txt in a subtest of its own, for which start
// returns a new Player. A line is a command or, after "> ", an output of the command
// before it; "#" starts a comment. A file whose outputs differ fails the test; with
// update it is rewritten instead.
func TestScenarios(t *testing.T, update bool, start func(t *testing.T) Player) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Split(string(text), "\n")
			got := playScenario(t, file, want, start(t))
			if update {
				if err := os.WriteFile(file, []byte(strings.Join(got, "\n")), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			for i := range max(len(got), len(want)) {
				g, w := "(end)", "(end)"
				if i < len(got) {
					g = got[i]
				}
				if i < len(want) {
					w = want[i]
				}
				if g != w {
					t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, g, w)
				}
			}
		})
	}
}

// playScenario returns the lines of a scenario with the outputs that its commands have.
func playScenario(t *testing.T, file string, lines []string, play Player) []string {
	var out []string
	for i, line := range lines {
		if strings.HasPrefix(line, ">") {
			continue
		}
		out = append(out, line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		output, err := play(words)
		if err != nil {
			t.Fatalf("%s:%d: %q: %v", file, i+1, line, err)
		}
		for _, o := range output {
			out = append(out, "> "+o)
		}
	}
	return out
}

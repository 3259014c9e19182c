package mutate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestReasonsStay checks that survivors keep their reasons where the run ended before them, and
// where two of them have the same text.
func TestReasonsStay(t *testing.T) {
	t.Chdir(t.TempDir())
	p := &pkg{dir: "m", digest: "2", mutants: []mutant{
		{1, "m.go", 1, 6, "a → b"}, {2, "m.go", 2, 6, "x → y"}, {3, "m.go", 3, 6, "x → y"}, {4, "m.go", 4, 6, "c → d"}, {5, "m.go", 5, 6, "e → f"},
	}}
	name := filepath.Join("cmd", "cascade-lab", "internal", "mutate", "survivors", "m.txt")
	testkit.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	text := "m.go:2:6 x → y\n\tequivalent: one\nm.go:3:6 x → y\n\tequivalent: two\nm.go:4:6 c → d\n\tequivalent: three\n"
	testkit.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	r := testkit.Must(openResults(p))
	for i, verdict := range []string{killed, survived, survived} { // 4 and 5 have not run
		testkit.NoError(t, r.add(p.mutants[i], verdict))
	}
	for range 2 {
		testkit.NoError(t, r.report(p, p.mutants))
		if got := string(testkit.Must(os.ReadFile(name))); got != text {
			t.Fatalf("survivors\n%s", got)
		}
	}
}

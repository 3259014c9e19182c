package mutate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestMutants mutates a module of its own, whose tests notice some mutants and not others.
func TestMutants(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod": "module github.com/cascadeinfer/cascade\n\ngo 1.26\n",
		"m/m.go": `package m

// Sum adds the numbers from 1 to n, capped at 10.
func Sum(n int) int {
	sum := 0
	for i := range n {
		if i == 3 && n < 0 {
			continue
		}
		sum += i + 1
	}
	if sum > 10 {
		sum = 10
	}
	return sum
}

func untested(a, b int) int { return a - b }
`,
		"m/m_test.go": `package m

import "testing"

func TestSum(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 3: 6, 5: 10} {
		if got := Sum(n); got != want {
			t.Errorf("%d: %d", n, got)
		}
	}
}
`,
	} {
		testkit.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	p := testkit.Must(load(t.Context(), "m"))
	bins := testkit.Must(build(t.Context(), p))
	defer os.RemoveAll(filepath.Dir(bins[0].file))
	var lived []string
	for _, m := range p.mutants {
		if testkit.Must(bins[0].pass(t.Context(), m)) {
			lived = append(lived, m.String())
		}
	}
	want := []string{
		"m.go:7:6 i == 3 && n < 0 → (i == 3) || (n < 0)",
		"m.go:7:6 i == 3 → (i) != (3)",
		"m.go:7:16 n < 0 → (n) <= (0)",
		"m.go:7:16 n < 0 → (n) >= (0)",
		"m.go:8:4 continue → removed",
		"m.go:12:5 sum > 10 → (sum) >= (10)",
		"m.go:18:38 a - b → (a) + (b)",
	}
	if !slices.Equal(lived, want) || len(p.mutants) != 12 {
		t.Errorf("%d mutants; survivors\n%s\nwant\n%s", len(p.mutants), strings.Join(lived, "\n"), strings.Join(want, "\n"))
	}
}

// TestFailedBuildLeavesNothing checks that a package whose tests do not compile or fail
// without a mutant is refused, and that no temporary files stay.
func TestFailedBuildLeavesNothing(t *testing.T) {
	for name, body := range map[string]string{"does not compile": "undefined()", "fails": `t.Error("fails")`} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			t.Setenv("TMPDIR", t.TempDir())
			testkit.NoError(t, os.WriteFile("go.mod", []byte("module github.com/cascadeinfer/cascade\n\ngo 1.26\n"), 0o644))
			testkit.NoError(t, os.Mkdir("m", 0o755))
			testkit.NoError(t, os.WriteFile("m/m.go", []byte("package m\n\nfunc add(a, b int) int { return a + b }\n"), 0o644))
			testkit.NoError(t, os.WriteFile("m/m_test.go", []byte("package m\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { "+body+" }\n"), 0o644))
			if _, err := build(t.Context(), testkit.Must(load(t.Context(), "m"))); err == nil {
				t.Fatal("built")
			}
			if left := testkit.Must(os.ReadDir(os.TempDir())); len(left) > 0 {
				t.Errorf("%v stays", left)
			}
		})
	}
}

// TestOutside checks which tests are left out: those with real processes, and no others of
// such names.
func TestOutside(t *testing.T) {
	for name, want := range map[string]bool{
		"xds/internal/publish.TestEnvoyRefuses": true, "xds/internal/publish.TestSplitWithoutControl": true, "xds/internal/publish.TestFlipsWithLossyAcks": true,
		"wasm/meter.TestGoGuestIsUnchanged": true, "wasm/slothost.TestPlugin": true,
		"policies/partition.TestWeighted": false, "wasm/meter.TestSplit": false, "wasm/host.TestMemoryIsClean": false,
	} {
		if got := outside.MatchString(name); got != want {
			t.Errorf("%s is left out: %v, want %v", name, got, want)
		}
	}
}

// TestReport checks that a run continues, and that the list of survivors keeps reasons
// while lines move.
func TestReport(t *testing.T) {
	t.Chdir(t.TempDir())
	p := &pkg{dir: "a/m", digest: "1", mutants: []mutant{{1, "m.go", 7, 6, "a → b"}, {2, "m.go", 8, 6, "c → d"}, {3, "m.go", 9, 6, "e → f"}}}
	r := testkit.Must(openResults(p))
	testkit.NoError(t, r.add(p.mutants[0], survived))
	testkit.NoError(t, r.add(p.mutants[1], killed))
	testkit.NoError(t, r.report(p, p.mutants))
	name := filepath.Join("cmd", "cascade-lab", "internal", "mutate", "survivors", "a_m.txt")
	if got := string(testkit.Must(os.ReadFile(name))); got != "m.go:7:6 a → b\n" {
		t.Errorf("survivors %q", got)
	}
	testkit.NoError(t, os.WriteFile(name, []byte("m.go:5:6 a → b\n\tequivalent: b is a\nm.go:6:6 c → d\n\tno more\n"), 0o644))
	r = testkit.Must(openResults(p))
	if len(r.verdicts) != 2 || r.verdicts[1] != survived || r.verdicts[2] != killed {
		t.Errorf("the next run has %v", r.verdicts)
	}
	testkit.NoError(t, r.report(p, p.mutants))
	if got := string(testkit.Must(os.ReadFile(name))); got != "m.go:7:6 a → b\n\tequivalent: b is a\n" {
		t.Errorf("survivors %q", got)
	}
	p.digest = "2"
	if r = testkit.Must(openResults(p)); len(r.verdicts) != 0 {
		t.Errorf("another package has %v", r.verdicts)
	}
}

// TestRun checks that only a failed test, a crash, used up CPU time or a wait without an
// end kill a mutant.
func TestRun(t *testing.T) {
	for script, want := range map[string]end{
		"exit 0": passed,
		"echo '--- FAIL: TestX'; echo FAIL; exit 1": failed,
		"echo 'panic: index out of range'; exit 2":  failed,
		"while :; do :; done":                       failed,
		"echo 'ulimit: bad number'; exit 2":         broken,
		"exec sleep 600":                            failed,
		"exec sleep 601":                            late,
	} {
		// Written before any of the parallel tests starts a process, which would hold the open file: "text file busy".
		b := testBinary{file: filepath.Join(t.TempDir(), "test"), dir: "."}
		testkit.NoError(t, os.WriteFile(b.file, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			limit := time.Minute
			if want == late {
				limit = 100 * time.Millisecond
			}
			if got, text := b.run(t.Context(), 0, nil, limit); got != want {
				t.Errorf("ended as %d, want %d: %s", got, want, text)
			}
		})
	}
}

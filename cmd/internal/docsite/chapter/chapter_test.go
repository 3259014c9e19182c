package chapter

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/cmd/internal/docsite/markdown"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func blocks(t *testing.T, source string) []Block {
	t.Helper()
	out, err := Blocks(testkit.Must(markdown.Parse([]byte(source))))
	testkit.NoError(t, err)
	return out
}

const sample = "```yaml file: a/f.yaml\nx: $HOME 'y'\n```\n\n```sh\ncat a/f.yaml\necho two\n```\n\n```text output\nx: $HOME 'y'\ntwo\n```\n\n" +
	"```sh slow\necho slow > slow.txt\n```\n\n```sh unrun: no cluster here\nkubectl get pods\n```\n\n```go\npackage p\n```\n"

func TestBlocks(t *testing.T) {
	want := []Block{{File, 2, "x: $HOME 'y'\n", "a/f.yaml"}, {Quick, 6, "cat a/f.yaml\necho two\n", ""}, {Output, 11, "x: $HOME 'y'\ntwo\n", ""},
		{Slow, 16, "echo slow > slow.txt\n", ""}, {Unrun, 20, "kubectl get pods\n", "no cluster here"}, {Quoted, 24, "package p\n", ""}}
	if diff := cmp.Diff(want, blocks(t, sample)); diff != "" {
		t.Error(diff)
	}
	for source, why := range map[string]string{
		"```\nx\n```\n":                               `language ""`,
		"```bash\nx\n```\n":                           `language "bash"`,
		"```console\n$ x\n```\n":                      `language "console"`,
		"```sh fast\nx\n```\n":                        `"fast" behind sh`,
		"```sh unrun\nx\n```\n":                       `"unrun" behind sh`,
		"```yaml file: ../x\nx\n```\n":                "must be below",
		"```yaml file: /x\nx\n```\n":                  "must be below",
		"```text output\nx\n```\n":                    "has no commands that run",
		"```sh unrun: a\nx\n```\n```text output\n```": "has no commands that run",
		"```yaml run\nx\n```\n":                       `"run" behind yaml`,
	} {
		_, err := Blocks(testkit.Must(markdown.Parse([]byte(source))))
		testkit.WantError(t, err, why)
	}
}

// TestScript runs the sample: quick blocks always, slow ones with all; and it stops at a command that fails.
func TestScript(t *testing.T) {
	bash := testkit.Tool(t, "bash")
	for _, all := range []bool{false, true} {
		b, dir := blocks(t, sample), t.TempDir()
		script, runs := Script(b, all)
		if want := map[bool]int{false: 1, true: 2}[all]; runs != want {
			t.Errorf("all %v: %d blocks run", all, runs)
		}
		read := func(i int) (string, error) {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".out")))
			return string(text), err
		}
		run := func(script string) error {
			cmd := exec.Command(bash, "-c", script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "OUT="+dir)
			return cmd.Run()
		}
		testkit.NoError(t, run(script))
		testkit.NoError(t, CheckOutput(b, all, read))
		if _, err := os.Stat(filepath.Join(dir, "slow.txt")); (err == nil) != all {
			t.Errorf("all %v: slow blocks: %v", all, err)
		}
		b[2].Text = "two\n"
		testkit.WantError(t, CheckOutput(b, all, read), "line 11: the commands above print otherwise:\nx: $HOME")
		for _, bad := range []string{"false\ntrue\n", "false | true\n", "no-such-command\necho\n"} {
			b[1].Text = bad
			if script, _ := Script(b, all); run(script) == nil {
				t.Errorf("%q passes", bad)
			}
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		shown, printed string
		want           bool
	}{
		{"a\nb", "a\nb\n", true}, {"a\nb", "a  \nb\n\n", true}, {"a", "a\nb", false}, {"a\nb", "a", false}, {"a\nb", "a\nc", false},
		{"…", "a\nb", true}, {"a\n…", "a", true}, {"a\n…\nd", "a\nb\nc\nd", true}, {"…\nb\n…", "a\nb\nc", true}, {"…\nb", "a\nb\nc", false}, {"…\nb\n…", "a\nc", false},
	} {
		if got := matches(lines(tc.shown), lines(tc.printed)); got != tc.want {
			t.Errorf("%q for %q: %v", strings.ReplaceAll(tc.shown, "\n", "/"), strings.ReplaceAll(tc.printed, "\n", "/"), got)
		}
	}
}

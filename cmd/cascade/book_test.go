package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/docsite/chapter"
	"github.com/cascadeinfer/cascade/cmd/internal/docsite/markdown"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// The blocks of commands in the book that no test runs, and the least number of those that always run. A block that
// is marked "unrun" changes the first: it needs what no machine of the tests has, such as a GPU.
const (
	bookUnrun = 5
	bookQuick = 12
)

// bookPort matches the addresses of a chapter.
var bookPort = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// TestBook runs the commands of each chapter of the book in docs, as they are written, with bash, and compares what
// they print with the output that the chapter shows. The addresses in its files become free ones, the same in all blocks
// of a chapter; those that are a command's defaults stay. Blocks that are marked "slow" run with CASCADE_TEST_ALL=1.
func TestBook(t *testing.T) {
	chapters, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil || len(chapters) < 7 {
		t.Fatalf("chapters %q, %v", chapters, err)
	}
	// Under the race detector, the compilation of a module and emulated engines take too long.
	bash, all := testkit.Tool(t, "bash"), os.Getenv("CASCADE_TEST_ALL") != "" && !testkit.RaceEnabled
	env := []string{"CHECKOUT=" + testkit.Must(filepath.Abs(filepath.Join("..", "..")))}
	if all {
		for _, name := range []string{"GOCACHE", "GOMODCACHE"} { // both lie in directories that chapters do not share
			env = append(env, name+"="+strings.TrimSpace(string(testkit.Must(exec.Command("go", "env", name).Output()))))
		}
	}
	var unrun []string
	quick := 0
	for _, file := range chapters {
		d, err := markdown.Parse(testkit.Must(os.ReadFile(file)))
		testkit.NoError(t, err)
		blocks, err := chapter.Blocks(d)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, b := range blocks {
			switch b.Use {
			case chapter.Quick:
				quick++
			case chapter.Unrun:
				unrun = append(unrun, fmt.Sprintf("%s:%d: %s", filepath.Base(file), b.Line, b.Name))
			}
			for line := range strings.Lines(b.Text) {
				if why := checkBookLine(b, strings.TrimSpace(line)); why != "" {
					t.Errorf("%s:%d: %s: %s", file, b.Line, strings.TrimSpace(line), why)
				}
			}
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			runChapter(t, bash, env, blocks, all)
		})
	}
	t.Logf("no test runs %d blocks:\n%s", len(unrun), strings.Join(unrun, "\n"))
	if len(unrun) != bookUnrun || quick < bookQuick {
		t.Errorf("%d blocks of commands do not run, and %d always do: want %d, and at least %d", len(unrun), quick, bookUnrun, bookQuick)
	}
}

// checkBookLine returns why a line of a block that may not run now cannot run: a command of cascade must exist, with
// its flags and arguments.
func checkBookLine(b chapter.Block, line string) string {
	if !slices.Contains([]chapter.Use{chapter.Slow, chapter.Unrun}, b.Use) || !strings.HasPrefix(line, "cascade ") {
		return ""
	}
	return checkCommand(strings.TrimSuffix(strings.TrimSuffix(line, " &"), " \\"))
}

// runChapter runs the blocks of a chapter in a directory of their own, with additional environment variables.
func runChapter(t *testing.T, bash string, env []string, blocks []chapter.Block, all bool) {
	free := make(map[string]string)
	for _, b := range blocks {
		if b.Use == chapter.File {
			for _, address := range bookPort.FindAllString(b.Text, -1) {
				free[address] = testkit.Addresses(t, 1)[0]
			}
		}
	}
	for i := range blocks {
		blocks[i].Text = bookPort.ReplaceAllStringFunc(blocks[i].Text, func(address string) string { return cmp.Or(free[address], address) })
	}
	script, runs := chapter.Script(blocks, all)
	if runs == 0 {
		return
	}
	dir := testkit.Must(os.MkdirTemp("", "book")) // short, for the paths of Unix sockets
	t.Cleanup(func() { os.RemoveAll(dir) })
	out := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", script)
	cmd.Dir, cmd.Env = dir, slices.Concat(os.Environ(), env, []string{"OUT=" + out, "XDG_RUNTIME_DIR=" + dir, "XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "LC_ALL=C.UTF-8", "NO_COLOR=1"})
	cmd.SysProcAttr = childprocess.DieWithParent()
	cmd.SysProcAttr.Setpgid = true
	killGroup := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = killGroup, 10*time.Second
	var at strings.Builder
	cmd.Stderr = &at
	err := cmd.Run()
	if cmd.Process != nil {
		killGroup() // what the chapter leaves in the background
	}
	if err != nil {
		t.Fatalf("%v, in the block at %s:\n%s", err, lastLine(at.String()), lastOutput(out, len(blocks)))
	}
	testkit.NoError(t, chapter.CheckOutput(blocks, all, func(i int) (string, error) {
		text, err := os.ReadFile(filepath.Join(out, fmt.Sprint(i, ".out")))
		return string(text), err
	}))
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// lastOutput returns what the last of n blocks that began has printed.
func lastOutput(dir string, n int) string {
	for i := n - 1; i >= 0; i-- {
		if text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".out"))); err == nil {
			return string(text)
		}
	}
	return ""
}

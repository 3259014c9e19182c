package mutate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// testBinary is a test package that was compiled with all mutants of one package.
type testBinary struct {
	file, dir string
	tests     []test // quick ones first
}

// test is one test function: the CPU time that it takes, how long it does nothing at a
// stretch, and what it covers.
type test struct {
	name    string
	seconds float64
	idle    time.Duration
	covers  map[block]bool
}

// block is a part of a file that the go command counts the executions of.
type block struct {
	file                               string
	line, column, lastLine, lastColumn int
}

func (b block) contains(m mutant) bool {
	at := func(line, column int) int { return cmp.Or(cmp.Compare(m.line, line), cmp.Compare(m.column, column)) }
	return b.file == m.file && at(b.line, b.column) >= 0 && at(b.lastLine, b.lastColumn) < 0
}

// build compiles the tests of a package with all of its mutants, into a temporary folder
// that the caller removes; there is none after an error.
func build(ctx context.Context, p *pkg) (out []testBinary, err error) {
	temp, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
		}
	}()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range p.instrumented() {
		file := filepath.Join(temp, filepath.Base(name))
		overlay.Replace[name] = file
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(overlay)
	if err == nil {
		err = os.WriteFile(filepath.Join(temp, "overlay.json"), text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	by := tests[p.dir]
	if by == nil {
		by = []string{p.dir}
	}
	for i, dir := range by {
		b := testBinary{file: filepath.Join(temp, fmt.Sprint(i, ".test")), dir: dir}
		covered := testBinary{file: b.file + ".cover", dir: dir}
		for file, flags := range map[string][]string{b.file: {"-overlay", filepath.Join(temp, "overlay.json")}, covered.file: {"-cover", "-coverpkg", module + p.dir}} {
			cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-c", "-vet=off", "-o", file}, flags, []string{"./" + dir})...)
			if text, err := cmd.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("compiling the tests of %s with the mutants: %w\n%s", dir, err, text)
			}
		}
		if _, err := os.Stat(b.file); err != nil {
			continue // no tests
		}
		if b.tests, err = covered.measure(ctx); err != nil {
			return nil, err
		}
		if text, err := b.command(ctx, 0, b.tests).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("tests of %s without a mutant: %w\n%s", dir, err, text)
		}
		out = append(out, b)
	}
	if len(out) == 0 {
		return nil, errors.New("no tests")
	}
	return out, nil
}

// measure runs every test alone, and returns what each takes and covers.
func (b testBinary) measure(ctx context.Context) ([]test, error) {
	list := exec.CommandContext(ctx, b.file, "-test.list", ".")
	list.Dir = b.dir
	names, err := list.Output()
	if err != nil {
		return nil, err
	}
	var out []test
	for _, name := range strings.Fields(string(names)) {
		if strings.HasPrefix(name, "Benchmark") || outside.MatchString(b.dir+"."+name) {
			continue
		}
		t, profile := test{name: name, seconds: 100, covers: map[block]bool{}}, b.file+".profile"
		cmd := b.command(ctx, 0, []test{t}, "-test.coverprofile", profile)
		text, idle, err := runWatched(ctx, cmd, time.Hour)
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, text)
		}
		t.idle = idle
		t.seconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		if text, err = os.ReadFile(profile); err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			path, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			at, count := block{file: filepath.Base(path)}, 0
			if n, _ := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &at.line, &at.column, &at.lastLine, &at.lastColumn, new(int), &count); n == 6 {
				t.covers[at] = t.covers[at] || count > 0
			}
		}
		out = append(out, t)
	}
	slices.SortStableFunc(out, func(a, b test) int { return cmp.Compare(a.seconds, b.seconds) })
	return out, nil
}

// errNoVerdict is the error about a mutant that has to run again, with less other work.
var errNoVerdict = errors.New("no verdict")

// pass reports whether all tests that reach a mutant pass with it. The quickest run first.
func (b testBinary) pass(ctx context.Context, m mutant) (bool, error) {
	var reach []test
	for _, t := range b.tests {
		outsideFunctions := true
		for at, covered := range t.covers {
			if at.contains(m) {
				outsideFunctions = false
				if covered {
					reach = append(reach, t)
					break
				}
			}
		}
		if outsideFunctions {
			reach = append(reach, t)
		}
	}
	for most := 0.1; len(reach) > 0; most *= 8 {
		n, sum := 1, reach[0].seconds
		for ; n < len(reach) && sum+reach[n].seconds < most; n++ {
			sum += reach[n].seconds
		}
		limit := time.Duration(60+60*sum) * time.Second
		end, text := b.run(ctx, m.id, reach[:n], limit)
		if end == late || end == failed && waitFailed.Match(text) {
			// Only a mutant that waits for ever is killed, not one on a busy machine.
			if control, _ := b.run(ctx, 0, reach[:n], limit); control == passed {
				end = failed
			} else {
				end = late
			}
		}
		switch end {
		case failed:
			return false, nil
		case late, broken:
			return false, fmt.Errorf("%s: %w on %s: the machine is too busy, or the tests did not run\n%s", b.dir, errNoVerdict, m, text)
		}
		reach = reach[n:]
	}
	return true, nil
}

// end is how a run of tests ended.
type end int

const (
	passed end = iota
	failed     // a test failed, the CPU time was used up, or it did nothing for much longer than without a mutant
	late       // the time on the clock was used up
	broken     // the tests did not run
)

// run runs tests on a mutant, for at most limit on the clock.
func (b testBinary) run(ctx context.Context, mutant int, tests []test, limit time.Duration) (end, []byte) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := b.command(limited, mutant, tests)
	most := mayIdle(tests)
	text, idle, err := runWatched(limited, cmd, most)
	switch {
	case err == nil:
		return passed, text
	case idle >= most:
		return failed, text
	case limited.Err() != nil:
		return late, text
	case cmd.ProcessState == nil:
		return broken, []byte(err.Error())
	}
	// The kernel kills for CPU time at less than the time that it reports.
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if used > time.Duration(cpuSeconds(tests))*time.Second/2 && err.Error() == "signal: killed" || testFailed.Match(text) {
		return failed, text
	}
	return broken, text
}

// runWatched runs a command, and returns its output and for how long it did nothing at a
// stretch. It is killed after most of that.
func runWatched(ctx context.Context, cmd *exec.Cmd, most time.Duration) (text []byte, idle time.Duration, err error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	longest := make(chan time.Duration, 1)
	go func() { longest <- watchIdle(ctx, cmd.Process, most) }()
	err = cmd.Wait()
	cancel()
	return out.Bytes(), <-longest, err
}

// waitFailed matches the output of a test that package testkit ended, because what it waited
// for did not happen for $CASCADE_WAIT.
var waitFailed = regexp.MustCompile(`timed out waiting`)

// testFailed matches the output of a test binary of which a test failed or crashed.
var testFailed = regexp.MustCompile(`(?m)^(FAIL|panic: |fatal error: |runtime: |unexpected fault address)`)

// cpuSeconds is the limit of CPU time for tests.
func cpuSeconds(tests []test) int {
	seconds := 0.0
	for _, t := range tests {
		seconds += t.seconds
	}
	return 3 + int(6*seconds)
}

// command returns the command that runs tests on a mutant; 0 is none. The limit is one of
// CPU time, so that other work on the machine kills no mutant.
func (b testBinary) command(ctx context.Context, mutant int, tests []test, flags ...string) *exec.Cmd {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	script := fmt.Sprintf(`ulimit -t %d && ulimit -v 16000000 && exec "$@"`, cpuSeconds(tests))
	args := []string{"-c", script, "sh", b.file, "-test.failfast", "-test.short", "-test.timeout=10m", "-test.run=^(" + strings.Join(names, "|") + ")$"}
	cmd := exec.CommandContext(ctx, "sh", append(args, flags...)...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), fmt.Sprint("CASCADE_MUTANT=", mutant), "CASCADE_WAIT=15s")
	return cmd
}

// Command qemu is "make rdma-check": it boots a small guest with RDMA in software
// (soft-RoCE), and runs the tests of verbs in it on the real library.
//
// It needs Debian or a derivative, gcc and qemu-system-x86, and no root: apt-get
// downloads the guest's kernel and libraries into .cache/rdma. It prints what the tests
// have measured and how long each stage took. It exits with 1 if a test fails, and with 2
// if something is missing. With CASCADE_TEST_ALL set it injects all faults of migrations.
package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed init.sh
var initScript string

const (
	cache = ".cache/rdma"
	// limit bounds the guest's run time: it needs about half a minute of a core, which it
	// may have to share.
	limit  = 15 * time.Minute
	memory = "1536"
	prefix = "rdma-check:"
)

// tests are the tests that run in the guest, in this order.
var tests = []struct{ pkg, run string }{
	{"./migrator/device/verbs", "."},
	{"./migrator/transport/verbs", "."},
	{"./migrator/move", "OverRDMA$"},
}

func main() {
	err := check()
	var missing *missingError
	switch {
	case errors.As(err, &missing):
		fmt.Fprintln(os.Stderr, "rdma-check:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "rdma-check:", err)
		os.Exit(1)
	}
}

// missingError is something that this machine lacks.
type missingError struct{ what, cure string }

func (e *missingError) Error() string { return e.what + " is missing: " + e.cure }

func check() error {
	for tool, cure := range map[string]string{
		"qemu-system-x86_64": "apt-get install --no-install-recommends qemu-system-x86",
		"apt-get":            "it requires Debian or a derivative",
		"dpkg-deb":           "it requires Debian or a derivative",
		"gcc":                "apt-get install gcc",
		"go":                 "install Go",
	} {
		if _, err := exec.LookPath(tool); err != nil {
			return &missingError{tool, cure}
		}
	}
	if _, err := os.Stat("go.mod"); err != nil {
		return &missingError{"go.mod", "run it in the repository's root: make rdma-check"}
	}
	start := time.Now()
	p, err := fetch()
	if err != nil {
		return err
	}
	image := filepath.Join(cache, "guest.cpio")
	if err := build(image, p); err != nil {
		return err
	}
	fmt.Printf("rdma-check: host | tests and image built | %.0f s\n", time.Since(start).Seconds())
	return boot(direct(p.kernel), image)
}

// processor is the guest's CPU model. Without erms and fsrm it copies memory by words:
// with emulated instructions, the byte-copy instruction is slow.
const processor = "max,-erms,-fsrm"

// kernelOptions disable what a short-lived guest does not need.
const kernelOptions = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off init_on_alloc=0 hardened_usercopy=off nokaslr tsc=reliable no_timer_check cryptomgr.notests"

// boot runs the guest and evaluates its output. Its clock counts instructions, 500 per
// microsecond, so that the measured times do not depend on the load of this machine.
func boot(kernel, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-icount", "shift=1,sleep=off", "-rtc", "clock=vm", "-cpu", processor, "-smp", "1", "-m", memory, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
		"-serial", "stdio", "-kernel", kernel, "-initrd", image, "-append", kernelOptions)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(cache, "guest.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	table, end := parseOutput(io.TeeReader(out, log), start)
	err = cmd.Wait()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range table {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	used := time.Duration(0)
	if cmd.ProcessState != nil {
		used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	fmt.Fprintf(w, "guest\tboot to end\t%.0f s, %.0f s of a core\n", time.Since(start).Seconds(), used.Seconds())
	w.Flush()
	switch {
	case end == "0":
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the guest was still running after %v; its output is in %s", limit, log.Name())
	case end == "":
		return fmt.Errorf("the guest did not finish (%v); its output is in %s", err, log.Name())
	}
	return fmt.Errorf("tests failed; their output is in %s", log.Name())
}

// parseOutput returns the rows and the exit status in a guest's output, and prints
// failures. Each "stage" of the guest becomes a row with the time since start, or since
// the stage before.
func parseOutput(r io.Reader, start time.Time) (table [][]string, end string) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	var output []string // of the running test
	for s.Scan() {
		line := strings.TrimRight(s.Text(), "\r")
		at := strings.Index(line, prefix)
		if at < 0 {
			if strings.HasPrefix(line, "=== RUN") {
				output = output[:0]
			}
			if output = append(output, line); strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "panic:") {
				fmt.Println(strings.Join(output, "\n"))
				output = output[:0]
			}
			continue
		}
		rest := strings.TrimSpace(line[at+len(prefix):])
		if rc, ok := strings.CutPrefix(rest, "end "); ok {
			end = rc
			continue
		}
		if stage, ok := strings.CutPrefix(rest, "stage "); ok {
			table = append(table, []string{"guest", stage, fmt.Sprintf("%.1f s", time.Since(start).Seconds())})
			fmt.Printf("rdma-check: guest | %s | %.1f s\n", stage, time.Since(start).Seconds())
			start = time.Now()
			continue
		}
		var row []string
		for _, cell := range strings.Split(rest, "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		table = append(table, row)
	}
	io.Copy(io.Discard, r)
	return table, end
}

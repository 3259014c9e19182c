// Command qemu is "make rdma-check": it boots a small guest that has RDMA in
// software (soft-RoCE), and runs the tests of verbs in it on the real library.
//
// It needs Debian or a relative of it, gcc and qemu-system-x86, and no root: the
// guest's kernel and libraries are downloaded by apt-get into .cache/rdma. It prints
// what the tests have measured and how long each stage took, and fails where one of
// them does or something is missing: built, it exits with 1 and with 2. With
// CASCADE_TEST_ALL set it injects all faults of moves.
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
	// limit bounds the guest's life: it needs about half a minute of a core, which it
	// may have to share.
	limit  = 15 * time.Minute
	memory = "1536"
	prefix = "rdma-check:"
)

// tests are what runs in the guest, in this order.
var tests = []struct{ pkg, run string }{
	{"./migrator/device/verbs", "."},
	{"./migrator/transport/verbs", "."},
	{"./migrator/executor", "OverRDMA$"},
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

// missingError says what this machine lacks.
type missingError struct{ what, cure string }

func (e *missingError) Error() string { return e.what + " is missing: " + e.cure }

func check() error {
	for tool, cure := range map[string]string{
		"qemu-system-x86_64": "apt-get install --no-install-recommends qemu-system-x86",
		"apt-get":            "it runs on Debian and its relatives alone",
		"dpkg-deb":           "it runs on Debian and its relatives alone",
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

// processor is the guest's. Without erms and fsrm it copies memory by words: where
// every instruction is emulated, the instruction that copies bytes is none for many.
const processor = "max,-erms,-fsrm"

// kernelOptions spare the kernel what a guest does not need that lives for a minute.
const kernelOptions = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off init_on_alloc=0 hardened_usercopy=off nokaslr tsc=reliable no_timer_check cryptomgr.notests"

// boot runs the guest and judges what it says. Its clock counts instructions, 500 in
// a microsecond, so that what it measures does not depend on what else this machine
// does.
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
	table, end := read(io.TeeReader(out, log), start)
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
		return fmt.Errorf("the guest was at work after %v still; what it said is in %s", limit, log.Name())
	case end == "":
		return fmt.Errorf("the guest did not come to its end (%v); what it said is in %s", err, log.Name())
	}
	return fmt.Errorf("tests failed; what they said is in %s", log.Name())
}

// read takes the rows and the end out of what a guest says, and shows failures. Each
// "stage" of the guest's becomes a row that says how long it took since start, or
// since the one before.
func read(r io.Reader, start time.Time) (table [][]string, end string) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	var said []string // by the test at work
	for s.Scan() {
		line := strings.TrimRight(s.Text(), "\r")
		at := strings.Index(line, prefix)
		if at < 0 {
			if strings.HasPrefix(line, "=== RUN") {
				said = said[:0]
			}
			if said = append(said, line); strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "panic:") {
				fmt.Println(strings.Join(said, "\n"))
				said = said[:0]
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

// Command qemu is "make rdma-check": it boots a small guest that has RDMA in
// software (soft-RoCE), and runs the tests of verbs in it on the real library.
//
// It needs Debian or a relative of it, gcc and qemu-system-x86, and no root: the
// guest's kernel and libraries are downloaded by apt-get into .cache/rdma. It prints
// what the tests have measured, and exits with 1 where one fails and with 2 where
// something is missing.
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
	// limit bounds the guest's life: it needs about a minute of a core, which it may
	// have to share.
	limit  = 15 * time.Minute
	memory = "1536"
	prefix = "rdma-check:"
)

// tests are the packages that run in the guest.
var tests = []string{"./migrator/device/verbs", "./migrator/transport/verbs"}

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
	p, err := fetch()
	if err != nil {
		return err
	}
	image := filepath.Join(cache, "guest.cpio")
	if err := build(image, p); err != nil {
		return err
	}
	return boot(p.kernel, image)
}

// boot runs the guest and judges what it says. Its clock counts instructions, 500 in
// a microsecond, so that what it measures does not depend on what else this machine
// does.
func boot(kernel, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := time.Now()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-icount", "shift=1,sleep=off", "-rtc", "clock=vm", "-cpu", "max", "-smp", "1", "-m", memory, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
		"-serial", "stdio", "-kernel", kernel, "-initrd", image, "-append", "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off")
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
	table, end := read(io.TeeReader(out, log))
	err = cmd.Wait()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range table {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	fmt.Fprintf(w, "guest\tboot to end\t%.0f s\n", time.Since(start).Seconds())
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

// read takes the rows and the end out of what a guest says, and shows failures.
func read(r io.Reader) (table [][]string, end string) {
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
		var row []string
		for _, cell := range strings.Split(rest, "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		table = append(table, row)
	}
	io.Copy(io.Discard, r)
	return table, end
}

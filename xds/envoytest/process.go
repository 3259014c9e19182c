package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const (
	// readyWithin bounds the start of an Envoy on a loaded machine; on an idle
	// one it takes a quarter of a second.
	readyWithin = 2 * time.Minute
	// stopWithin bounds the time from SIGTERM to the end of an Envoy.
	stopWithin = 5 * time.Second
	// validateWithin bounds one run of --mode validate.
	validateWithin = 2 * time.Minute
	// poll is the interval at which conditions are checked.
	poll = 10 * time.Millisecond
	// tail is how much of Envoy's log a failed test prints, in bytes.
	tail = 16 << 10
)

// Config configures Start.
type Config struct {
	// Bootstrap is the whole bootstrap, YAML or JSON. Its admin address should
	// be 127.0.0.1 with port 0; listeners may have port 0 as well.
	Bootstrap string
	// Concurrency is the number of worker threads. Default 2.
	Concurrency int
	// Args are further command line arguments, for instance
	// "--drain-time-s", "3" or "--component-log-level", "ext_proc:debug".
	Args []string
}

// Process is a running Envoy. Its methods fail the test when Envoy does not
// answer; call them from the test's own goroutine.
type Process struct {
	t       testing.TB
	admin   string
	log     string    // path
	once    sync.Once // of Stop
	http    http.Client
	process *testkit.Process
}

// Start runs Envoy until the end of the test and returns when it is ready. If the test
// fails, it logs the tail of Envoy's output.
func Start(t testing.TB, c Config) *Process {
	t.Helper()
	binary, dir := Binary(t), t.TempDir()
	boot, admin := filepath.Join(dir, "bootstrap.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(boot, []byte(c.Bootstrap), 0o600); err != nil {
		t.Fatalf("envoytest: %v", err)
	}
	if c.Concurrency == 0 {
		c.Concurrency = 2
	}
	p := &Process{t: t, log: filepath.Join(dir, "log")}
	p.http.Timeout = 10 * time.Second
	p.http.Transport = &http.Transport{DisableKeepAlives: true}
	args := append([]string{"-c", boot, "--disable-hot-restart", "-l", "warning",
		"--concurrency", strconv.Itoa(c.Concurrency), "--admin-address-path", admin}, c.Args...)
	if err := p.start(exec.Command(binary, args...)); err != nil {
		t.Fatalf("envoytest: start %s: %v", binary, err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", p.Log())
		}
	})
	p.waitReady(admin)
	return p
}

// start runs the command with its output in the log.
func (p *Process) start(cmd *exec.Cmd) error {
	file, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer file.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = file, file
	p.process, err = testkit.StartProcess(cmd)
	return err
}

// waitReady polls for the admin address, then for /ready.
func (p *Process) waitReady(path string) {
	p.t.Helper()
	p.waitUntil("ready", readyWithin, func() error {
		if p.admin == "" {
			address, err := os.ReadFile(path)
			if err != nil || len(address) == 0 {
				return errors.New("no admin address yet")
			}
			p.admin = strings.TrimSpace(string(address))
		}
		_, err := p.get("/ready")
		return err
	})
}

// waitUntil polls a condition until it holds. It fails the test after the time limit or if
// Envoy has ended.
func (p *Process) waitUntil(what string, within time.Duration, condition func() error) {
	p.t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-p.process.Ended():
			p.t.Fatalf("envoytest: Envoy ended before it was %s: %v", what, err)
		case <-deadline.C:
			p.t.Fatalf("envoytest: Envoy is not %s within %s: %v", what, within, err)
		case <-time.After(poll):
		}
	}
}

// Stop ends Envoy as an orchestrator would, with SIGTERM, and waits for it. A
// second call does nothing.
func (p *Process) Stop() {
	p.once.Do(func() {
		syscall.Kill(p.PID(), syscall.SIGTERM)
		select {
		case <-p.process.Ended():
		case <-time.After(stopWithin):
			p.process.Kill()
		}
	})
}

// PID returns Envoy's process id, for instance to measure what it costs.
func (p *Process) PID() int { return p.process.PID() }

// Log returns the tail of what Envoy wrote, without the warning about
// connection limits that it always prints.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data[max(0, len(data)-tail):])) {
		if !strings.Contains(line, "no configured limit to the number of allowed active downstream connections") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// get asks the admin interface.
func (p *Process) get(path string) ([]byte, error) {
	response, err := p.http.Get("http://" + p.admin + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return body, err
}

// Validate checks a bootstrap with Envoy's own parser and fails the test if it
// is refused or uses a deprecated field. It resolves no cluster names and
// looks for no sense: that is the caller's proof.
func Validate(t testing.TB, bootstrap string) {
	t.Helper()
	if output, err := validate(Binary(t), t.TempDir(), bootstrap); err != nil {
		t.Errorf("envoytest: Envoy refuses the bootstrap: %v\n%s\n%s", err, output, bootstrap)
	}
}

func validate(binary, dir, bootstrap string) (string, error) {
	boot := filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(boot, []byte(bootstrap), 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), validateWithin)
	defer cancel()
	output, err := exec.CommandContext(ctx, binary, "--mode", "validate", "--disable-hot-restart", "-l", "warning", "-c", boot).CombinedOutput()
	if err == nil && strings.Contains(string(output), "Deprecated field") {
		err = errors.New("it uses a deprecated field")
	}
	return string(output), err
}

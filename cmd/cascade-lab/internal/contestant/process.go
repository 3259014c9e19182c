package contestant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
)

const (
	// stopTimeout is how long a process may take to end after SIGTERM.
	stopTimeout = 5 * time.Second
	probeEvery  = 50 * time.Millisecond
	// outputKept is how much of the end of a process's output is shown when it fails.
	outputKept = 2 << 10
	maxAnswer  = 64 << 10 // bytes of a probe's answer that are read
)

// process is a router that is a process of its own.
type process struct {
	argv    []string
	address string            // where it serves clients
	probe   string            // path that answers 200 once it serves
	workers int               // how many workers the probe's answer must count as healthy; 0: it counts none
	files   map[string][]byte // written into a directory of its own, for which {dir} in argv stands
	log     *slog.Logger
	output  tail
}

// URL implements Router.
func (p *process) URL() string { return "http://" + p.address }

// Ready implements Router.
func (p *process) Ready(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		err := p.check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// check probes the process once.
func (p *process) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+p.probe, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", p.probe, resp.Status)
	}
	if p.workers == 0 {
		return nil
	}
	return countWorkers(body, p.workers)
}

// countWorkers checks the answer of a router's /readiness. A router that serves with some of
// its workers would be measured as one of a smaller fleet.
func countWorkers(body []byte, want int) error {
	var answer struct {
		Healthy int `json:"healthy_workers"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("readiness: %w", err)
	}
	if answer.Healthy != want {
		return fmt.Errorf("readiness: %d of %d workers are healthy", answer.Healthy, want)
	}
	return nil
}

// Run implements Router.
func (p *process) Run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "routerbench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, text := range p.files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	argv := make([]string, len(p.argv))
	for i, a := range p.argv {
		argv[i] = strings.ReplaceAll(a, "{dir}", dir)
	}
	// For the kernel, the parent dies when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	cmd.SysProcAttr = childprocess.DieWithParent()
	cmd.SysProcAttr.Setpgid = true // SIGTERM goes to what it starts, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		return err
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started; there may be none
	p.log.Debug("router ended", "command", argv[0], "output", p.output.String())
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("the process exited")
	}
	return fmt.Errorf("%s: %w; its last output:\n%s", argv[0], err, p.output.String())
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - outputKept; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// envoyStopTimeout is how long Envoy may take to end after SIGTERM.
const envoyStopTimeout = 5 * time.Second

// envoyProcess is a real Envoy that gets its configuration from the control
// plane.
type envoyProcess struct {
	binary string
	xds    string // address of the control plane
	drain  time.Duration
	log    *slog.Logger
}

// run runs Envoy until ctx ends. Its files live in a temporary directory.
func (e *envoyProcess) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cascade-envoy")
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	defer os.RemoveAll(dir)
	boot, err := resources.Bootstrap(resources.BootstrapConfig{NodeID: envoyProxy, ControlPlane: e.xds})
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(path, boot, 0o600); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	admin := filepath.Join(dir, "admin")
	alive, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd := exec.CommandContext(alive, e.binary, "-c", path, "--disable-hot-restart", "--concurrency", "2", "-l", "error", "--admin-address-path", admin)
	cmd.Stdout, cmd.Stderr = logWriter{e.log}, logWriter{e.log}
	cmd.SysProcAttr = childprocess.DieWithParent()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = envoyStopTimeout
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		select {
		case <-ctx.Done():
			e.drainListeners(alive, admin)
		case <-alive.Done():
		}
		kill()
	}()
	err = cmd.Run()
	kill()
	<-drained
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("the process exited")
	}
	return fmt.Errorf("envoy %s: %w; run with --log warn to see its log", e.binary, err)
}

// drainListeners stops Envoy's listeners and waits until its streams have
// ended, for at most the drain time: SIGTERM alone would cut them.
func (e *envoyProcess) drainListeners(ctx context.Context, admin string) {
	ctx, cancel := context.WithTimeout(ctx, e.drain)
	defer cancel()
	address, err := os.ReadFile(admin)
	if err != nil {
		return // it has not started
	}
	base := "http://" + strings.TrimSpace(string(address))
	for _, path := range []string{"/healthcheck/fail", "/drain_listeners"} {
		if _, err := callAdmin(ctx, http.MethodPost, base+path); err != nil {
			e.log.Warn("draining Envoy failed", "error", err)
			return
		}
	}
	busy := regexp.MustCompile(`(?m): [1-9]\d*$`) // a gauge that is not 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		stats, err := callAdmin(ctx, http.MethodGet, base+`/stats?filter=^http\.cascade\..*downstream_rq_active$`)
		if err != nil || !busy.MatchString(stats) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// callAdmin sends a request to Envoy's admin server.
func callAdmin(ctx context.Context, method, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return string(body), err
}

// logWriter writes a process's output to the log.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Warn("output", "text", string(p))
	return len(p), nil
}

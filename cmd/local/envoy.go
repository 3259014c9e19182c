package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// envoyStop is how long Envoy may take to end after SIGTERM.
const envoyStop = 5 * time.Second

// envoyProcess is a real Envoy that gets everything from our control plane.
type envoyProcess struct {
	binary string
	xds    string // address of the control plane
	log    *slog.Logger
}

// run runs Envoy until ctx ends. Its files live in a temporary directory.
func (e *envoyProcess) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cascade-envoy")
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	defer os.RemoveAll(dir)
	boot, err := resources.Bootstrap(resources.BootstrapConfig{NodeID: "envoy", XDS: e.xds})
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(path, boot, 0o600); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	cmd := exec.CommandContext(ctx, e.binary, "-c", path, "--disable-hot-restart", "--concurrency", "2", "-l", "error")
	cmd.Stdout, cmd.Stderr = logWriter{e.log}, logWriter{e.log}
	cmd.SysProcAttr = dieWithParent()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = envoyStop
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("it ended by itself")
	}
	return fmt.Errorf("envoy %s: %w; its log shows with --log warn", e.binary, err)
}

// logWriter passes a process's output on to the log.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(p []byte) (int, error) {
	w.log.Warn("output", "text", string(p))
	return len(p), nil
}

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
)

// DaemonMark is the annotation of commands that run until they are stopped.
const DaemonMark = "daemon"

// Daemon marks a command that runs until it is stopped. The end of the terminal or login
// that it was started from, which sends SIGHUP, does not end it.
func Daemon(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{DaemonMark: ""}
	return c
}

// ignoreHangups logs each SIGHUP, which otherwise ends the process, until the returned
// function is called.
func ignoreHangups(log *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			select {
			case <-hangups:
				log.Warn("SIGHUP ignored: certificates, and the fleet file of a control plane, are read again " +
					"whenever they change; other settings need a restart")
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(hangups)
		cancel()
		loop.Wait()
	}
}

// States of a daemon that systemd follows (Type=notify). Where the process does not run under
// systemd, notifying does nothing.
const (
	SystemdReady    = systemd.SdNotifyReady
	SystemdStopping = systemd.SdNotifyStopping
)

// MainProcess makes another process of the unit its main process: a successor, whose end is then
// that of the unit. Only the main process sends it.
func MainProcess(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// NotifySystemd sends a state to systemd.
func NotifySystemd(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("systemd was not notified; it may restart this unit", "state", state, "error", err)
	}
}

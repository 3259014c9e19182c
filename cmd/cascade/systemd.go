package main

import (
	"fmt"
	"log/slog"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// States of a daemon that systemd follows (Type=notify). Where the process does not run under
// systemd, notifying does nothing.
const (
	systemdReady    = systemd.SdNotifyReady
	systemdStopping = systemd.SdNotifyStopping
)

// mainProcess makes another process of the unit its main process: a successor, whose end is then
// that of the unit. Only the main process sends it.
func mainProcess(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// notifySystemd sends a state to systemd.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("systemd was not notified; it may restart this unit", "state", state, "error", err)
	}
}

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// daemonMark is the annotation of commands that run until they are stopped.
const daemonMark = "daemon"

// daemon marks a command that runs until it is stopped. The end of the terminal or login
// that it was started from, which sends SIGHUP, does not end it.
func daemon(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{daemonMark: ""}
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
				log.Warn("SIGHUP ignored: certificates, and the fleet file of a control plane, are read again whenever they change; other settings need a restart")
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

package main

import (
	"context"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/handover"
	"github.com/cascadeinfer/cascade/xds/proxy"
)

// runProxy stops the predecessor as soon as the proxy serves, and retires the proxy once a successor
// does. It returns then, or when ctx ends.
func (s *upgrade) runProxy(ctx context.Context, px *proxy.Proxy, log *slog.Logger) error {
	select {
	case <-px.Ready():
	case <-ctx.Done():
		return nil
	}
	server, before, err := s.takeover.Finish(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	before.Close() // the processes of a proxy exchange nothing further
	notifySystemd(log, systemdReady)
	after, err := server.Serve(ctx, handover.Config{
		Listeners: s.listeners, Logger: log,
		Stopped: func(successor int) { notifySystemd(log, mainProcess(successor)) },
	})
	switch {
	case err == nil:
		after.Close()
		log.Info("another process has taken over, this one ends with its last stream")
		px.Retire()
	case ctx.Err() == nil:
		log.Warn("handover stopped; the next upgrade needs a restart", "error", err)
	}
	return nil
}

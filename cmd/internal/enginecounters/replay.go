package enginecounters

import (
	"context"
	"log/slog"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// Replay runs r and adds to its Result.Reuse what the counters of the engines say meanwhile. Counters that
// cannot be read are logged and leave those figures unknown.
func Replay(ctx context.Context, cfg Config, r *replay.Replay, log *slog.Logger) (replay.Result, error) {
	w, err := New(cfg)
	if err != nil {
		return replay.Result{}, err
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(watching)
	}()
	result, err := r.Run(ctx)
	stop()
	<-done
	total, unread := w.Total()
	switch {
	case result.Reuse == nil:
	case unread != nil:
		log.Warn("engine counters were not read: hit rate and load CV may be missing", "cause", unread)
	default:
		result.Reuse.AddEngines(total.Queries, total.Hits, total.LoadCV)
	}
	return result, err
}

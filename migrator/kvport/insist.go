package kvport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	insistRetry    = 100 * time.Millisecond // before a call that failed is tried again; it doubles
	maxInsistRetry = 2 * time.Second        // and ends here
	insistTimeout  = 30 * time.Second       // for an engine to answer; then its session ends
)

// Insist repeats a call that thaws, drops or releases something until the engine has answered it or is
// unavailable: then nothing is frozen or reserved any more. If the engine fails for 30 s, Insist abandons its
// session, which has the same effect, and returns true. It also returns when ctx ends, because the session
// ends then, too. call and object are for the log.
func Insist(ctx context.Context, log *slog.Logger, call, object string, do func(context.Context) error, abandon func(why error)) (abandoned bool) {
	end, wait := time.Now().Add(insistTimeout), insistRetry
	for tries := 1; ; tries++ {
		try, cancel := context.WithTimeout(ctx, engineTimeout)
		err := do(try)
		cancel()
		if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			if tries > 1 && (err == nil || errors.Is(err, ErrNotFound)) {
				log.Info("engine call answered after retries", "call", call, "object", object, "tries", tries)
			}
			return false
		}
		if !time.Now().Before(end) {
			log.Error("engine session abandoned after repeated failures", "call", call, "object", object, "error", err)
			abandon(fmt.Errorf("%s of %s: %w", call, object, err))
			return true
		}
		if tries == 1 {
			log.Warn("engine call failed; retrying", "call", call, "object", object, "for", insistTimeout, "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
		wait = min(2*wait, maxInsistRetry)
	}
}

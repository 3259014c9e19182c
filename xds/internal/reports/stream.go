package reports

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// idleTimeout ends a stream on which no report arrives: a live client reconnects, and a
// dead one must not keep its name.
const idleTimeout = 30 * time.Second

// ErrStopped is the error of calls to a control plane that stops.
var ErrStopped = status.Error(codes.Unavailable, "the control plane stops")

// Receiver reads a stream in a goroutine of its own, because receiving has no deadline.
type Receiver[M any] struct{ out chan received[M] }

type received[M any] struct {
	message M
	err     error
}

// Receive starts to read a stream. The goroutine ends when the handler of the stream has
// returned, or ctx has ended.
func Receive[M any](ctx context.Context, recv func() (M, error)) *Receiver[M] {
	r := &Receiver[M]{make(chan received[M])}
	go func() {
		for {
			m, err := recv()
			select {
			case r.out <- received[M]{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return r
}

// Next waits for a message, the end of the stream, that of the control plane (done) or
// that of ctx, whose cause may be a gRPC status.
func (r *Receiver[M]) Next(ctx context.Context, done <-chan struct{}) (m M, err error) {
	idle := time.NewTimer(idleTimeout)
	defer idle.Stop()
	select {
	case got := <-r.out:
		return got.message, got.err
	case <-idle.C:
		return m, status.Errorf(codes.DeadlineExceeded, "no load report for %v", idleTimeout)
	case <-done:
		return m, ErrStopped
	case <-ctx.Done():
		cause := context.Cause(ctx)
		if _, ok := status.FromError(cause); ok {
			return m, cause
		}
		return m, status.FromContextError(cause).Err()
	}
}

// Bucket is a token bucket over the reports of a stream.
type Bucket struct {
	rate, burst, tokens float64
	at                  time.Time
}

// NewBucket returns a full bucket, for rate reports a second and bursts of burst.
func NewBucket(now time.Time, rate, burst float64) *Bucket { return &Bucket{rate, burst, burst, now} }

// Spend reports whether another report is within the bounds.
func (b *Bucket) Spend(now time.Time) bool {
	b.tokens = min(b.tokens+float64(now.Sub(b.at).Seconds()*b.rate), b.burst)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// Counter counts accepted reports and refused streams.
type Counter struct {
	Log     *slog.Logger
	Message string       // that is logged for a refused stream
	Codes   []codes.Code // of the errors that refuse a stream

	accepted, refused atomic.Uint64

	mu   sync.Mutex
	last string // refusal that was logged
}

// Accept counts a report.
func (c *Counter) Accept() { c.accepted.Add(1) }

// End counts and logs the end of a stream if it was refused. A refusal is not logged if
// the last one was the same: a client with a wrong configuration retries forever.
func (c *Counter) End(err error) error {
	if !slices.Contains(c.Codes, status.Code(err)) {
		return err
	}
	c.refused.Add(1)
	c.mu.Lock()
	repeated := c.last == err.Error()
	c.last = err.Error()
	c.mu.Unlock()
	if !repeated {
		c.Log.Warn(c.Message, "error", err)
	}
	return err
}

// Counts returns how many reports were accepted, and how many streams were refused.
func (c *Counter) Counts() (accepted, refused uint64) { return c.accepted.Load(), c.refused.Load() }

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Deadlines of requests. A shorter one of the caller holds, too.
const (
	readTimeout  = 2 * time.Second
	writeTimeout = 3 * time.Second
	noteTimeout  = time.Second      // notes are exchanged once a second
	blobTimeout  = 20 * time.Second // a module of several pieces
)

const (
	// retryPause is the pause after an attempt that failed at once.
	retryPause = 50 * time.Millisecond
	// minAttempt is the least time of an attempt; with less left, it is the last one.
	minAttempt = 300 * time.Millisecond
)

// call runs a request until etcd answers it or its time is over. The client of etcd sends
// each attempt to the next member; an attempt ends early, so that a member that hangs does
// not use up the whole time. do must allow that an attempt whose answer was lost had
// succeeded.
func (c *Client) call(ctx context.Context, operation string, timeout time.Duration, do func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error // the last error other than a timeout, if there was one
	for first := true; ; first = false {
		conn, err := c.connect(ctx)
		if err == nil {
			err = attempt(ctx, first, conn, do)
			if isRefusedLogin(err) {
				c.disconnect(conn)
			}
		}
		if err == nil {
			return nil
		}
		if !isTimeout(err) || last == nil {
			last = err
		}
		if ctx.Err() == nil && isTransient(err) {
			select {
			case <-time.After(retryPause):
				continue
			case <-ctx.Done():
			}
		}
		return c.describe(operation, last)
	}
}

// attempt sends a request once. A first attempt has two fifths of the time that is left,
// each further one the half.
func attempt(ctx context.Context, first bool, conn *clientv3.Client, do func(context.Context, *clientv3.Client) error) error {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	share := left / 2
	if first {
		share = left * 2 / 5
	}
	if share >= minAttempt {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, share)
		defer cancel()
	}
	return do(ctx, conn)
}

// isTransient reports whether a request may succeed when it is sent again, or at another
// member.
func isTransient(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || isAny(err, rpctypes.ErrAuthOldRevision) {
		return true
	}
	switch codeOf(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.DeadlineExceeded
}

// codeOf returns the gRPC code of an error of the client of etcd, which has types of its own.
func codeOf(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

func isRefusedLogin(err error) bool {
	return isAny(err, rpctypes.ErrAuthFailed, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty)
}

func isAny(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) || rpctypes.ErrorDesc(err) == rpctypes.ErrorDesc(k) {
			return err != nil
		}
	}
	return false
}

// describe adds to an error where it happened, and what to do.
func (c *Client) describe(operation string, err error) error {
	at := fmt.Sprintf("etcd at %s: %s", strings.Join(c.cfg.Endpoints, ", "), operation)
	switch {
	case isAny(err, rpctypes.ErrNoSpace):
		return fmt.Errorf(`%s: %w: its database is full: compact and defragment it, then run "etcdctl alarm disarm"; --auto-compaction-retention keeps it small`, at, err)
	case isAny(err, rpctypes.ErrPermissionDenied):
		return remotestore.RefusedError{Cause: fmt.Errorf("%s: %w: grant the user's role readwrite on the prefix %s/", at, err, c.cfg.Prefix)}
	case isRefusedLogin(err):
		return remotestore.RefusedError{Cause: fmt.Errorf("%s: user %q: %w: check the user and its password file", at, c.cfg.User, err)}
	case isAny(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%s: %w: etcd's --max-request-bytes must be at least 1572864, its default", at, err)
	case isTransient(err):
		return fmt.Errorf("%s: %w: check that most of its members run and that this host reaches them (%s)", at, store.ErrUnavailable, cause(err))
	}
	return fmt.Errorf("%s: %w", at, err)
}

// cause returns the text of an error without gRPC's frame.
func cause(err error) string {
	if isTimeout(err) {
		return "no answer in time"
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

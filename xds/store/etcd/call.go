package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/xds/store"
)

// call makes a request until etcd answers it or ctx's time is over (store.Retry). The client of
// etcd sends each attempt to the next member.
func (c *Client) call(ctx context.Context, operation string, do func(context.Context, *clientv3.Client) error) error {
	err := store.Retry(ctx, isTransient, func(ctx context.Context) error {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		err = do(ctx, conn)
		if isRefusedLogin(err) {
			c.disconnect(conn)
		}
		if err != nil && isTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // also what gRPC calls so
		}
		return err
	})
	if err == nil {
		return nil
	}
	return c.describe(operation, err)
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
		return store.RefusedError{Cause: fmt.Errorf("%s: %w: grant the user's role readwrite on the prefix %s/", at, err, c.cfg.Prefix)}
	case isRefusedLogin(err):
		return store.RefusedError{Cause: fmt.Errorf("%s: user %q: %w: check the user and its password file", at, c.cfg.User, err)}
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

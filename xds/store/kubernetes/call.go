package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Deadlines of requests. A shorter one of the caller holds, too.
const (
	readTimeout  = 2 * time.Second
	writeTimeout = 3 * time.Second
	noteTimeout  = time.Second      // notes are exchanged once a second
	blobTimeout  = 20 * time.Second // a module of several parts
)

const (
	// retryPause is the pause after an attempt that failed at once.
	retryPause = 50 * time.Millisecond
	// minAttempt is the least time of an attempt; with less left, it is the last one.
	minAttempt = 300 * time.Millisecond
)

// call makes a request until the API server answers it or its time is over. An attempt ends
// early, so that an API server that hangs does not use up the whole time: the next attempt
// opens another connection, perhaps to another API server. do must allow that an attempt whose
// answer was lost had succeeded.
func (c *Client) call(ctx context.Context, operation string, timeout time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error // the last error other than a timeout, if there was one
	for first := true; ; first = false {
		err := attempt(ctx, first, do)
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) || last == nil {
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

// attempt makes a request once. A first attempt has two fifths of the time that is left, each
// further one the half.
func attempt(ctx context.Context, first bool, do func(context.Context) error) error {
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
	return do(ctx)
}

// statusOf returns the HTTP status and the message of an answer that is an error; 0 if there
// was no answer.
func statusOf(err error) (code int, message string) {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return 0, err.Error()
	}
	return int(answer.Status().Code), answer.Status().Message
}

// isTransient reports whether a request may succeed when it is made again.
func isTransient(err error) bool {
	code, message := statusOf(err)
	switch {
	case strings.Contains(message, noSpace):
		return false
	case code == 0, code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return true
	}
	return false
}

// noSpace is a part of the message of an API server whose etcd is full.
const noSpace = "database space exceeded"

// describe adds to an error where it happened, and what to do.
func (c *Client) describe(operation string, err error) error {
	at := fmt.Sprintf("kubernetes namespace %s: %s", c.namespace, operation)
	code, message := statusOf(err)
	switch {
	case strings.Contains(message, noSpace):
		return fmt.Errorf("%s: %w: the etcd of the cluster is full: compact and defragment it", at, err)
	case code == http.StatusForbidden:
		return remotestore.RefusedError{Cause: fmt.Errorf("%s: %w: bind the Role of deploy/kubernetes/control-role.yaml to the ServiceAccount of this Pod", at, err)}
	case code == http.StatusUnauthorized:
		return remotestore.RefusedError{Cause: fmt.Errorf("%s: %w: check the token or the certificate of this client", at, err)}
	case isTransient(err):
		return fmt.Errorf("%s: %w: check that the API server runs and that this Pod reaches it (%s)", at, store.ErrUnavailable, cause(err))
	}
	return fmt.Errorf("%s: %w", at, err)
}

// cause returns the text of an error, which is always the same for the same cause.
func cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cascadeinfer/cascade/xds/store"
)

// call makes a request until the API server answers it or ctx's time is over (store.Retry): the
// next attempt opens another connection, perhaps to another API server.
func (c *Client) call(ctx context.Context, operation string, do func(context.Context) error) error {
	if err := store.Retry(ctx, isTransient, do); err != nil {
		return c.describe(operation, err)
	}
	return nil
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
		return store.RefusedError{Cause: fmt.Errorf("%s: %w: bind the Role of deploy/kubernetes/control-role.yaml to the ServiceAccount of this Pod", at, err)}
	case code == http.StatusUnauthorized:
		return store.RefusedError{Cause: fmt.Errorf("%s: %w: check the token or the certificate of this client", at, err)}
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

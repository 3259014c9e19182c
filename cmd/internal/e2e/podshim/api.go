package podshim

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Bounds of a request.
const (
	requestTimeout = 10 * time.Second
	maxAnswer      = 64 << 20
)

// API is a client of an API server: plain JSON, because the few objects that are needed here are
// not worth a typed client.
type API struct {
	base, token string
	client      *http.Client
}

// NewAPI returns a client of the API server at host:port, whose certificate the PEM file verifies.
func NewAPI(address, caFile, token string) (*API, error) {
	authority, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: has no certificate", caFile)
	}
	return &API{"https://" + address, token, &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}}, nil
}

// Close closes idle connections.
func (a *API) Close() { a.client.CloseIdleConnections() }

// statusError is an answer that is no success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d %s", e.code, e.text) }

// isStatus reports whether err is an answer with one of the codes.
func isStatus(err error, codes ...int) bool {
	var s *statusError
	if errors.As(err, &s) {
		for _, code := range codes {
			if s.code == code {
				return true
			}
		}
	}
	return false
}

// Apply creates or changes an object by server-side apply. path is that of the object, and the text
// is YAML or JSON.
func (a *API) Apply(ctx context.Context, path string, text []byte) error {
	return a.do(ctx, http.MethodPatch, path+"?fieldManager=podshim&force=true", "application/apply-patch+yaml", text, nil)
}

// Do makes a request with a body in JSON and decodes the answer; in and out may be nil.
func (a *API) Do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	return a.do(ctx, method, path, kind, body, out)
}

func (a *API) do(ctx context.Context, method, path, kind string, body []byte, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	r.Header.Set("Content-Type", kind)
	answer, err := a.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case answer.StatusCode >= http.StatusMultipleChoices:
		var s struct{ Message string }
		_ = json.Unmarshal(text, &s) // without a message the code must do
		return &statusError{answer.StatusCode, s.Message}
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}

// listOf is a list of objects.
type listOf[T any] struct{ Items []T }

// list returns all objects of a kind in all namespaces.
func list[T any](ctx context.Context, a *API, path string) ([]T, error) {
	var l listOf[T]
	err := a.Do(ctx, http.MethodGet, path, nil, &l)
	return l.Items, err
}

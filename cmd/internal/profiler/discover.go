package profiler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect/known"
	"github.com/cascadeinfer/cascade/policies"
)

// Served is what an endpoint says about itself.
type Served struct {
	Model    string          // the first that it lists
	Context  policies.Tokens // max_model_len of the model; 0: not listed
	KVTokens policies.Tokens // from the engine's metrics; 0: not served
}

// Discover asks an endpoint for its model, unless one is given, its context and the size of its KV cache.
func Discover(ctx context.Context, c Config) (Served, error) {
	p := &Profiler{cfg: c, client: &http.Client{Transport: c.Transport}}
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	text, err := p.get(ctx, "v1/models")
	if err != nil {
		return Served{}, fmt.Errorf("list the models of %s: %w", c.Endpoint, err)
	}
	s := Served{Model: c.Model}
	for _, m := range gjson.GetBytes(text, "data").Array() {
		if id := m.Get("id").Str; id != "" && (s.Model == "" || s.Model == id) {
			s.Model, s.Context = id, policies.Tokens(m.Get("max_model_len").Int())
			break
		}
	}
	if s.Model == "" {
		return Served{}, fmt.Errorf("%s lists no model: name one with --model", c.Endpoint)
	}
	// Other engines have no such metrics, which is no error.
	if text, err := p.get(ctx, "metrics"); err == nil {
		for _, d := range known.Dialects() {
			if m, err := d.Load(text); err == nil {
				s.KVTokens = max(s.KVTokens, m.KVTokens)
			}
		}
	} else if ctx.Err() != nil {
		return Served{}, err
	}
	return s, nil
}

// get returns the body of a resource.
func (p *Profiler) get(ctx context.Context, path string) ([]byte, error) {
	r, err := p.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = &statusError{response.StatusCode, string(text)}
	}
	return text, err
}

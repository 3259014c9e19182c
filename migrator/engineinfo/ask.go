package engineinfo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/policies"
)

// MaxAnswer bounds an answer of an engine in bytes.
const MaxAnswer = 4 << 20

// Bounds of what an engine states.
const (
	maxModels = 1 << 10
	maxName   = 256 // bytes
)

// Get sends a GET request to a path of the engine. The caller bounds it by the context.
type Get func(ctx context.Context, path string) (*http.Response, error)

// errNotServed is the answer of an engine without a resource.
var errNotServed = errors.New("not served")

// Read returns the body of a resource.
func (get Get) Read(ctx context.Context, path string) ([]byte, error) {
	resp, err := get(ctx, path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s of the engine: status %s: %w", path, resp.Status, errNotServed)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	if err == nil && len(text) > MaxAnswer {
		err = fmt.Errorf("GET %s of the engine: longer than %d bytes: %w", path, MaxAnswer, errNotServed)
	}
	return text, err
}

// Ask asks an engine what it is. The error is the first of a request that had no answer:
// then the result is what was learnt, and asking again may show more.
func Ask(ctx context.Context, get Get) (i Info, err error) {
	read := func(path string, take func([]byte)) {
		text, failed := get.Read(ctx, path)
		switch {
		case failed == nil:
			take(text)
		case !errors.Is(failed, errNotServed) && err == nil:
			err = failed
		}
	}
	read("/version", func(text []byte) { i.Version = decodeVersion(text) })
	read("/v1/models", func(text []byte) { i.Models = decodeModels(text) })
	read("/metrics", func(text []byte) {
		if m, err := DecodeMetrics(text); err == nil {
			i.Update(m)
		}
	})
	return i, err
}

// Update takes over what metrics show of the engine. What they do not show stays.
func (i *Info) Update(m Metrics) {
	if m.KVTokens > 0 {
		i.BlockTokens, i.KVTokens = m.BlockTokens, m.KVTokens
	}
	if m.Connector == Present && i.Connector == Unknown {
		i.Connector = Present
	}
	if m.Connector == Present {
		i.ConnectorName = NIXL
	}
	i.Layout = cmp.Or(m.Layout, i.Layout)
	i.DraftTokens = max(i.DraftTokens, m.DraftTokens)
}

// decodeVersion returns the version in an answer of GET /version, "" for none.
func decodeVersion(text []byte) string {
	if !gjson.ValidBytes(text) {
		return ""
	}
	v := gjson.GetBytes(text, "version").Str
	return v[:min(len(v), maxName)]
}

// decodeModels returns the names in an answer of GET /v1/models.
func decodeModels(text []byte) (out []Model) {
	if !gjson.ValidBytes(text) {
		return nil
	}
	for _, m := range gjson.GetBytes(text, "data").Array() {
		name, context := m.Get("id"), m.Get("max_model_len").Int()
		if name.Type != gjson.String || name.Str == "" || len(name.Str) > maxName || len(out) == maxModels {
			continue
		}
		if context < 0 || context > maxTokens {
			context = 0
		}
		out = append(out, Model{Name: name.Str, Context: policies.Tokens(context), Adapter: m.Get("parent").Type == gjson.String})
	}
	return out
}

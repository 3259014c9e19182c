package dialect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
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

// Ask asks an engine what it is, and which of the dialects it speaks, by the kind that its list of models
// names: d is nil if it names none. The error is the first of a request that had no answer: then the result
// is what was learnt, and asking again may show more.
func Ask(ctx context.Context, get Get, dialects []Dialect) (i engineinfo.Info, d Dialect, err error) {
	read := func(path string, take func([]byte)) {
		text, failed := get.Read(ctx, path)
		switch {
		case failed == nil:
			take(text)
		case !errors.Is(failed, errNotServed) && err == nil:
			err = failed
		}
	}
	read("/v1/models", func(text []byte) { i.Models, d = decodeModels(text), pick(text, dialects) })
	spoken := d
	if spoken == nil {
		spoken = dialects[0]
	}
	c := spoken.Capabilities()
	read(c.VersionPath, func(text []byte) {
		i.Version = decodeVersion(text)
		if configurable, ok := spoken.(Configurable); ok {
			d = configurable.Configured(text)
		}
	})
	read(c.LoadPath, func(text []byte) {
		if m, err := spoken.Load(text); err == nil {
			i.Update(m)
		}
	})
	if _, ok := spoken.(KV); !ok {
		i.Connector = engineinfo.Absent
	}
	return i, d, err
}

// pick returns the dialect of an engine by its answer of GET /v1/models, nil for none.
func pick(models []byte, dialects []Dialect) Dialect {
	owner := gjson.GetBytes(models, "data.0.owned_by").Str
	for _, d := range dialects {
		if d.Capabilities().Name == owner {
			return d
		}
	}
	return nil
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
func decodeModels(text []byte) (out []engineinfo.Model) {
	if !gjson.ValidBytes(text) {
		return nil
	}
	for _, m := range gjson.GetBytes(text, "data").Array() {
		name, context := m.Get("id"), m.Get("max_model_len").Int()
		if name.Type != gjson.String || name.Str == "" || len(name.Str) > maxName || len(out) == maxModels {
			continue
		}
		if context < 0 || context > MaxTokens {
			context = 0
		}
		out = append(out, engineinfo.Model{Name: name.Str, Context: policies.Tokens(context), Adapter: m.Get("parent").Type == gjson.String})
	}
	return out
}

package dialect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/known"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// TestMetrics runs testdata/*.txt (-rewrite rewrites the expected output): "metrics vllm-0.32.0-nixl" decodes
// testdata/metrics/….prom.
func TestMetrics(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		return func(words []string) ([]string, error) {
			text, err := os.ReadFile(filepath.Join("testdata", "metrics", words[1]+".prom"))
			if err != nil {
				return nil, err
			}
			var m engineinfo.Metrics
			err = dialect.ErrNoMetrics
			for _, d := range known.Dialects() {
				if m, err = d.Load(text); err == nil {
					break
				}
			}
			if err != nil {
				return []string{err.Error()}, nil
			}
			l := m.Load
			return []string{
				fmt.Sprintf("load: %d of %d tokens, running %d, waiting %d, queued %d, preemptions %d, busy %v", l.KVUsed, l.Capacity, l.Running, l.Waiting, l.Queued, l.Preemptions, l.Busy()),
				fmt.Sprintf("engine: kv %d, block %d, connector %v, layout %q, drafts %d, started at %.0f", m.KVTokens, m.BlockTokens, m.Connector, m.Layout, m.DraftTokens, m.StartedAt),
			}, nil
		}
	})
}

// TestAsk checks what is learnt of an engine whose resources are missing, invalid or too long, or
// do not answer: the rest, and an error only for what may be answered later.
func TestAsk(t *testing.T) {
	const models, metrics = `{"data":[{"id":"m","max_model_len":4096},{"id":7},{"id":"lora"}]}`, "vllm:nixl_num_failed_transfers_total 0\n"
	for _, test := range []struct {
		name    string
		answers map[string]string // by path; a missing one is 404, "-" does not answer
		want    string
		err     bool
	}{
		{"all", map[string]string{"/version": `{"version":"0.32.0"}`, "/v1/models": models, "/metrics": metrics}, "0.32.0 [{m 4096 false} {lora 0 false}] yes", false},
		{"none", nil, " [] unknown", false},
		{"invalid", map[string]string{"/version": `{"version":`, "/v1/models": `[]`, "/metrics": "\x00"}, " [] unknown", false},
		{"too long", map[string]string{"/version": strings.Repeat(" ", dialect.MaxAnswer) + `{}`, "/v1/models": models}, " [{m 4096 false} {lora 0 false}] unknown", false},
		{"silent", map[string]string{"/version": "-", "/v1/models": models, "/metrics": "-"}, " [{m 4096 false} {lora 0 false}] unknown", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, _, err := dialect.Ask(t.Context(), func(_ context.Context, path string) (*http.Response, error) {
				text, ok := test.answers[path]
				switch {
				case text == "-":
					return nil, context.DeadlineExceeded
				case !ok:
					return &http.Response{StatusCode: http.StatusNotFound, Status: "404 Not Found", Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text))}, nil
			}, known.Dialects())
			if got := fmt.Sprintf("%s %v %v", info.Version, info.Models, info.Connector); got != test.want {
				t.Errorf("learnt %s, want %s", got, test.want)
			}
			if (err != nil) != test.err || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// FuzzLoad checks that no metrics break the invariants of a load, or take long.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/metrics/*.prom")
	if err != nil || len(files) == 0 {
		f.Fatalf("no metrics: %v", err)
	}
	for _, file := range files {
		f.Add(testkit.Must(os.ReadFile(file)))
	}
	f.Add([]byte("vllm:cache_config_info{block_size=\"4611686018427387904\",num_gpu_blocks=\"4\"} 1\nvllm:kv_cache_usage_perc 1e300\nvllm:num_preemptions_total +Inf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, d := range known.Dialects() {
			m, err := d.Load(text)
			if err := (policies.Load{Engine: m.Load}).Validate(); err != nil {
				t.Error(err)
			}
			if err != nil && m != (engineinfo.Metrics{}) {
				t.Errorf("metrics %+v with %v", m, err)
			}
			if len(m.Layout) > engineinfo.MaxConnectorText || m.KVTokens < 0 || m.BlockTokens < 0 || m.DraftTokens < 0 || !(m.StartedAt >= 0) {
				t.Errorf("%+v", m)
			}
		}
	})
}

// TestIsAdapter checks for which names KV is not that of the model.
func TestIsAdapter(t *testing.T) {
	answer := `{"data":[{"id":"base","root":"/models/b","parent":null},{"id":"alias","root":"/models/b","parent":null},{"id":"sql","root":"/lora/sql","parent":"/models/b"}]}`
	info, _, _ := dialect.Ask(t.Context(), func(_ context.Context, path string) (*http.Response, error) {
		body := answer
		if path != "/v1/models" {
			body = "{}"
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
	}, known.Dialects())
	for name, want := range map[string]bool{"base": false, "alias": false, "": false, "sql": true, "loaded later": true} {
		if got := info.IsAdapter(name, "base"); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

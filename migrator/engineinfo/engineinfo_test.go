package engineinfo_test

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
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The commands:
//
//	metrics vllm-0.32.0-nixl        decodes testdata/metrics/….prom
//	engine models=a:4096,b:0 kv=1000 block=16
//	check model=a context=4096      is the engine the one of the fleet file?
//	capacity stated=900 assumed=0   which size of the KV cache counts?
//	read at=3s took=5ms [failed]    records a read of the metrics
//	due at=4s
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		var info engineinfo.Info
		var pace engineinfo.Pace
		return func(words []string) ([]string, error) {
			arg := func(name string) string {
				for _, w := range words[1:] {
					if v, ok := strings.CutPrefix(w, name+"="); ok {
						return v
					}
				}
				return ""
			}
			number := func(name string) (n policies.Tokens) { fmt.Sscan(arg(name), &n); return n }
			duration := func(name string) time.Duration { d, _ := time.ParseDuration(arg(name)); return d }
			switch words[0] {
			case "metrics":
				text, err := os.ReadFile(filepath.Join("testdata", "metrics", words[1]+".prom"))
				if err != nil {
					return nil, err
				}
				m, err := engineinfo.DecodeMetrics(text)
				if err != nil {
					return []string{err.Error()}, nil
				}
				l := m.Load
				return []string{
					fmt.Sprintf("load: %d of %d tokens, running %d, waiting %d, queued %d, preemptions %d, busy %v", l.KVUsed, l.Capacity, l.Running, l.Waiting, l.Queued, l.Preemptions, l.Busy()),
					fmt.Sprintf("engine: kv %d, block %d, connector %v, layout %q, drafts %d, started at %.0f", m.KVTokens, m.BlockTokens, m.Connector, m.Layout, m.DraftTokens, m.StartedAt),
				}, nil
			case "engine":
				info = engineinfo.Info{KVTokens: number("kv"), BlockTokens: number("block")}
				for _, m := range strings.FieldsFunc(arg("models"), func(r rune) bool { return r == ',' }) {
					name, context, _ := strings.Cut(m, ":")
					listed := engineinfo.Model{Name: name}
					fmt.Sscan(context, &listed.Context)
					info.Models = append(info.Models, listed)
				}
				return nil, nil
			case "check":
				if err := info.Check(arg("model"), number("context")); err != nil {
					return []string{err.Error()}, nil
				}
				return []string{"ready"}, nil
			case "capacity":
				out := []string{fmt.Sprint(int64(info.Capacity(number("stated"), number("assumed"))))}
				if warning := info.CheckCapacity(number("stated")); warning != "" {
					out = append(out, "warning: "+warning)
				}
				return out, nil
			case "read":
				var err error
				if words[len(words)-1] == "failed" {
					err = engineinfo.ErrNoMetrics
				}
				pace.Done(duration("at"), duration("took"), err)
				return nil, nil
			case "due":
				return []string{fmt.Sprint(pace.Due(duration("at")))}, nil
			}
			return nil, fmt.Errorf("no command %q", words[0])
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
		{"too long", map[string]string{"/version": strings.Repeat(" ", engineinfo.MaxAnswer) + `{}`, "/v1/models": models}, " [{m 4096 false} {lora 0 false}] unknown", false},
		{"silent", map[string]string{"/version": "-", "/v1/models": models, "/metrics": "-"}, " [{m 4096 false} {lora 0 false}] unknown", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, err := engineinfo.Ask(t.Context(), func(_ context.Context, path string) (*http.Response, error) {
				text, ok := test.answers[path]
				switch {
				case text == "-":
					return nil, context.DeadlineExceeded
				case !ok:
					return &http.Response{StatusCode: http.StatusNotFound, Status: "404 Not Found", Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text))}, nil
			})
			if got := fmt.Sprintf("%s %v %v", info.Version, info.Models, info.Connector); got != test.want {
				t.Errorf("learnt %s, want %s", got, test.want)
			}
			if (err != nil) != test.err || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestCheckHandoff checks which engines hand KV over to each other: only those that are known to
// differ do not.
func TestCheckHandoff(t *testing.T) {
	nixl := engineinfo.KVConnector{Presence: engineinfo.Present, Name: engineinfo.NIXL, Version: "0.32.0", Layout: "block_size=16"}
	with := func(change func(*engineinfo.KVConnector)) engineinfo.KVConnector {
		c := nixl
		change(&c)
		return c
	}
	for _, test := range []struct {
		name, want string
		to         engineinfo.KVConnector
	}{
		{"the same", "", nixl},
		{"unknown", "", engineinfo.KVConnector{}},
		{"unknown presence", "", with(func(c *engineinfo.KVConnector) { c.Presence = engineinfo.Unknown })},
		{"none", engineinfo.ErrNoConnector.Error(), engineinfo.KVConnector{Presence: engineinfo.Absent}},
		{"other connector", `different KV connectors: "nixl"`, with(func(c *engineinfo.KVConnector) { c.Name = "CascadeConnector" })},
		{"other version", "different engine versions", with(func(c *engineinfo.KVConnector) { c.Version = "0.33.0" })},
		{"other layout", "different KV layouts", with(func(c *engineinfo.KVConnector) { c.Layout = "block_size=32" })},
	} {
		for _, pair := range [][2]engineinfo.KVConnector{{nixl, test.to}, {test.to, nixl}} {
			if err := engineinfo.CheckHandoff(pair[0], pair[1]); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), strings.TrimSuffix(test.want, `: "nixl"`)) {
				t.Errorf("%s: %v", test.name, err)
			}
		}
	}
}

// FuzzDecodeMetrics checks that no metrics break the invariants of a load, or take long.
func FuzzDecodeMetrics(f *testing.F) {
	files, err := filepath.Glob("testdata/metrics/*.prom")
	if err != nil || len(files) == 0 {
		f.Fatalf("no metrics: %v", err)
	}
	for _, file := range files {
		f.Add(testkit.Must(os.ReadFile(file)))
	}
	f.Add([]byte("vllm:cache_config_info{block_size=\"4611686018427387904\",num_gpu_blocks=\"4\"} 1\nvllm:kv_cache_usage_perc 1e300\nvllm:num_preemptions_total +Inf\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := engineinfo.DecodeMetrics(text)
		if err := (policies.Load{Engine: m.Load}).Validate(); err != nil {
			t.Error(err)
		}
		if err != nil && m != (engineinfo.Metrics{}) {
			t.Errorf("metrics %+v with %v", m, err)
		}
		if len(m.Layout) > engineinfo.MaxConnectorText || m.KVTokens < 0 || m.BlockTokens < 0 || m.DraftTokens < 0 || !(m.StartedAt >= 0) {
			t.Errorf("%+v", m)
		}
	})
}

// TestIsAdapter checks for which names KV is not that of the model.
func TestIsAdapter(t *testing.T) {
	answer := `{"data":[{"id":"base","root":"/models/b","parent":null},{"id":"alias","root":"/models/b","parent":null},{"id":"sql","root":"/lora/sql","parent":"/models/b"}]}`
	info, _ := engineinfo.Ask(t.Context(), func(_ context.Context, path string) (*http.Response, error) {
		body := answer
		if path != "/v1/models" {
			body = "{}"
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
	})
	for name, want := range map[string]bool{"base": false, "alias": false, "": false, "sql": true, "loaded later": true} {
		if got := info.IsAdapter(name, "base"); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

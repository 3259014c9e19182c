package dialecttest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// third is the dialect of an engine that nothing else knows: it continues ids at a path of its own, streams them
// as [id, text] pairs, and states its load as JSON. It hands no KV over.
type third struct{}

var thirdFields = &openai.Fields{IDs: "with_ids", Withheld: []string{"peer"}, Features: map[string]policies.Features{"grammar": policies.Structured}}

func (third) Capabilities() dialect.Capabilities {
	return dialect.Capabilities{Name: "third", Fields: thirdFields, VersionPath: "/about", LoadPath: "/load", HealthPath: "/alive", Counters: []string{`{"active"`}, Text: "decoded"}
}

func (third) Continue(q *openai.Resume, c dialect.Continuation) []byte {
	if c.IDs == nil {
		return nil
	}
	body := fmt.Appendf(nil, `{"resume":%s,"chat":%v,"stream":%v`, list(c.IDs), q.Endpoint == openai.Chat, !c.Warm)
	if c.Warm {
		body = append(body, `,"max_tokens":1`...)
	} else {
		body = q.AppendLimits(body, c.Output)
	}
	return append(append(body, q.Rest...), '}')
}

func (third) Open(e openai.Endpoint, body []byte) (string, func(io.Reader) io.Reader) {
	if !bytes.HasPrefix(body, []byte(`{"resume"`)) {
		return e.Path(), nil
	}
	return "/resume", func(src io.Reader) io.Reader {
		r, w := io.Pipe()
		go func() { w.CloseWithError(translateThird(w, src, e)) }()
		return r
	}
}

// translateThird makes of pairs the events of an endpoint.
func translateThird(w io.Writer, src io.Reader, e openai.Endpoint) error {
	const head = `data: {"id":"t","object":"x","created":1,"model":"m","choices":[`
	lines := bufio.NewScanner(src)
	for n := 0; lines.Scan(); {
		line, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		pair := gjson.Parse(line)
		content, finish := `"text":`+pair.Get("1").Raw, "null"
		if e == openai.Chat {
			content = `"delta":{"content":` + pair.Get("1").Raw + `}`
		}
		if n++; pair.Get("2").Bool() {
			finish = `"length"`
		}
		if _, err := fmt.Fprintf(w, "%s{\"index\":0,%s,\"finish_reason\":%s,\"token_ids\":[%s]}]}\n\n", head, content, finish, pair.Get("0").Raw); err != nil {
			return err
		}
		if finish != "null" {
			fmt.Fprintf(w, "%s],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", head, n)
		}
	}
	return lines.Err()
}

func (third) Tokenize(r *openai.Request) dialect.Call {
	if !r.OneText() {
		return dialect.Call{}
	}
	name := map[openai.Endpoint]string{openai.Completions: "prompt", openai.Chat: "messages"}[r.Endpoint]
	return dialect.Call{Path: "/tokenize", Body: fmt.Appendf(nil, `{%q:%s}`, name, r.Prompt()), Tokens: "tokens"}
}

func (third) Load(text []byte) (m engineinfo.Metrics, err error) {
	var said struct {
		Active, Queued int
		KV             *struct{ Used, Size uint32 }
	}
	if json.Unmarshal(text, &said) != nil || said.KV == nil || said.Active < 0 || said.Queued < 0 {
		return m, dialect.ErrNoMetrics
	}
	m.KVTokens, m.StatesRequests = policies.Tokens(said.KV.Size), true
	m.Load = policies.EngineLoad{Capacity: m.KVTokens, KVUsed: min(policies.Tokens(said.KV.Used), m.KVTokens), Running: said.Active, Waiting: said.Queued, Queued: said.Queued}
	return m, nil
}

// generateThird is that engine.
func generateThird(e *engine, w http.ResponseWriter, path string, q map[string]any) {
	limit := numberOf(q["max_tokens"], 16)
	switch {
	case path != "/resume":
		e.sendAPI(w, path, promptOf(q, nil), limit, q["stream"] == true, q["with_ids"] == true)
	case q["stream"] != true:
		io.WriteString(w, "{}")
	default:
		e.run(w, idsOf(q["resume"]), limit, func(all []uint32) {
			id := all[len(all)-1]
			fmt.Fprintf(w, "data: [%d,%s,%v]\n\n", id, quote(textOf(id)), len(all) == limit)
		})
	}
}

package emulator

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// ask sends a request to an engine and decodes its answer.
func ask[T any](t *testing.T, e *Engine, path, body string) (answer T) {
	t.Helper()
	w := serveRequest(e, post(path, body))
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	testkit.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

type chatAnswer struct {
	Choices []struct {
		Message, Delta struct {
			Content   string
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
}

// TestSchema asks for values of a schema as pydantic writes them, streamed and not: they are JSON, within the schema,
// and the same.
func TestSchema(t *testing.T) {
	const format = `"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"$defs":{"Kind":{"enum":["cat","dog"]}},"type":"object","properties":{
		"count":{"type":"integer","exclusiveMinimum":2},"share":{"type":["number","null"]},"kind":{"$ref":"#/$defs/Kind"},"name":{"anyOf":[{"type":"string"},{"type":"null"}]},
		"tags":{"type":"array","minItems":2,"items":{"type":"string"}},"ok":{"type":"boolean"},"none":{"type":"null"},"v":{"const":{"a":1}}}}}}`
	e, _ := start(t, Config{Context: 4096})
	body := `{"messages":[{"role":"user","content":"a \"quoted\" question"}],"max_tokens":40,"ignore_eos":true,` + format
	whole := ask[chatAnswer](t, e, "/v1/chat/completions", body+"}").Choices[0].Message.Content
	var v struct {
		Count int
		Share float64
		Kind  string
		Name  string
		Tags  []string
		OK    *bool
		V     struct{ A int }
	}
	testkit.NoError(t, json.Unmarshal([]byte(whole), &v))
	if v.Count != 3 || v.Kind != "cat" || len(v.Name) < 40 || len(v.Tags) != 2 || v.OK == nil || v.V.A != 1 || !strings.Contains(whole, `"none":null`) || !strings.Contains(whole, `"share":0`) {
		t.Errorf("the answer is %s", whole)
	}
	w := serveRequest(e, post("/v1/chat/completions", body+`,"stream":true}`))
	var streamed strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			var c chatAnswer
			testkit.NoError(t, json.Unmarshal([]byte("{"+data), &c))
			streamed.WriteString(c.Choices[0].Delta.Content)
		}
	}
	if streamed.String() != whole {
		t.Errorf("streamed %s\nnot     %s", &streamed, whole)
	}
}

// TestToolCall checks that arguments are JSON, and that tools count as part of the prompt.
func TestToolCall(t *testing.T) {
	e, _ := start(t, Config{Context: 4096})
	const body = `{"messages":[{"role":"user","content":"a"}],"max_tokens":20,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"q":{"type":"string"}}}}}]}`
	c := ask[chatAnswer](t, e, "/v1/chat/completions", body).Choices[0]
	var arguments struct{ Q string }
	if len(c.Message.ToolCalls) != 1 || c.Message.ToolCalls[0].Function.Name != "f" {
		t.Fatalf("%+v", c)
	}
	testkit.NoError(t, json.Unmarshal([]byte(c.Message.ToolCalls[0].Function.Arguments), &arguments))
	if arguments.Q == "" {
		t.Error("the arguments are empty")
	}
	count := func(body string) int { return ask[struct{ Count int }](t, e, "/tokenize", body).Count }
	if with, without := count(body), count(`{"messages":[{"role":"user","content":"a"}]}`); with < without+10 {
		t.Errorf("%d tokens with tools, %d without", with, without)
	}
}

// TestEmbeddings compares vectors of texts, and both encodings.
func TestEmbeddings(t *testing.T) {
	e, _ := start(t, Config{Context: 4096})
	type answer struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	a := ask[answer](t, e, "/v1/embeddings", `{"model":"m","input":["a cat sat on the mat","a cat sat on a mat","quantum chromodynamics at zero temperature"]}`)
	vectors := make([][]float64, len(a.Data))
	for i, d := range a.Data {
		testkit.NoError(t, json.Unmarshal(d.Embedding, &vectors[i]))
	}
	cosine := func(i, j int) (sum float64) {
		for k := range vectors[i] {
			sum += vectors[i][k] * vectors[j][k]
		}
		return sum
	}
	if len(vectors) != 3 || len(vectors[0]) != embeddingSize || math.Abs(cosine(0, 0)-1) > 1e-5 || cosine(0, 1) < 0.7 || cosine(0, 2) > 0.5 || a.Usage.PromptTokens < 12 {
		t.Errorf("%d vectors, usage %+v; of equal texts %v, near ones %v, others %v", len(vectors), a.Usage, cosine(0, 0), cosine(0, 1), cosine(0, 2))
	}
	packed := ask[answer](t, e, "/v1/embeddings", `{"input":"a cat sat on the mat","encoding_format":"base64"}`)
	var text string
	testkit.NoError(t, json.Unmarshal(packed.Data[0].Embedding, &text))
	raw := testkit.Must(base64.StdEncoding.DecodeString(text))
	if got := float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))); len(raw) != 4*embeddingSize || math.Abs(got-vectors[0][0]) > 1e-6 {
		t.Errorf("%d bytes, the first number is %v, not %v", len(raw), got, vectors[0][0])
	}
}

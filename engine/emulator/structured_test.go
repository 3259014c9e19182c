package emulator

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
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

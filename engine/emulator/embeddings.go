package emulator

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

const (
	embeddingSize = 256
	maxInputs     = 2048 // of one request
)

// embed serves /v1/embeddings. A vector is the normalised sum of a pseudo-random one for each token: equal texts have
// equal vectors, and texts that share words are near each other. It takes the time of a prefill.
func (e *Engine) embed(w http.ResponseWriter, r *http.Request) *apiError {
	root, bad := readObject(w, r)
	if bad != nil {
		return bad
	}
	var name string
	if v := root.Get("model"); v.Exists() {
		name, bad = str("model", v)
	}
	if bad == nil {
		bad = e.checkModel(name)
	}
	format := root.Get("encoding_format").Str
	switch {
	case bad != nil:
		return bad
	case format != "" && format != "float" && format != "base64":
		return invalid("encoding_format", "encoding_format must be float or base64")
	case root.Get("dimensions").Exists():
		return invalid("dimensions", "dimensions is not supported by this engine: a vector has %d", embeddingSize)
	}
	inputs, bad := decodeInputs(root.Get("input"))
	if bad != nil {
		return bad
	}
	b, total := []byte(`{"id":`), 0
	b = append(quote(b, fmt.Sprintf("embd-%016x", rand.Uint64())), `,"object":"list","created":`...)
	b = append(quote(append(strconv.AppendInt(b, time.Now().Unix(), 10), `,"model":`...), e.cfg.Model), `,"data":[`...)
	for i, q := range inputs {
		q.model = name
		ids, bad := e.prefill(r, &q)
		if bad != nil {
			return bad
		}
		if ids == nil {
			return nil // the client has left
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":`, i)
		b = append(appendVector(b, embedding(ids), format == "base64"), '}')
		total += len(ids)
	}
	b = fmt.Appendf(b, `],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":null}}`, total, total)
	writeJSON(w, http.StatusOK, b)
	return nil
}

// decodeInputs decodes a text, a list of token ids, or a list of either.
func decodeInputs(v gjson.Result) ([]request, *apiError) {
	list := []gjson.Result{v}
	if first := v.Get("0"); v.IsArray() && first.Type != gjson.Number {
		list = v.Array()
	}
	if len(list) == 0 || len(list) > maxInputs {
		return nil, invalid("input", "input must have 1 to %d texts, not %d", maxInputs, len(list))
	}
	out := make([]request, len(list))
	for i, one := range list {
		if one.IsArray() {
			ids, bad := tokens("input", one)
			if bad != nil {
				return nil, bad
			}
			out[i].ids = ids
		} else {
			out[i].text = one.Str
		}
		if out[i].text == "" && len(out[i].ids) == 0 {
			return nil, invalid("input", "input.%d: must be a text or a list of token ids that is not empty", i)
		}
	}
	return out, nil
}

// prefill computes a prompt and returns its ids; none if the client has left.
func (e *Engine) prefill(r *http.Request, q *request) ([]model.Token, *apiError) {
	q.maxTokens = 1
	st := &stream{engine: e, arrived: time.Now(), ready: make(chan struct{}, 1), atEnd: true, faults: e.faults.Load()}
	ids, bad := e.submitPrompt(completions, q, st)
	if bad != nil {
		return nil, bad
	}
	for {
		switch err := e.wait(r, st); err {
		case nil:
		case errClientGone:
			return nil, nil
		default:
			return nil, e.notServing(errStopped)
		}
		switch _, finish, _ := st.take(nil); finish {
		case batch.Unfinished:
		case batch.Dropped:
			return nil, unavailable(errDropped)
		default:
			return ids, nil
		}
	}
}

// embedding returns the vector of a text.
func embedding(ids []model.Token) (v [embeddingSize]float64) {
	for _, id := range ids {
		random := rand.NewPCG(uint64(id), 0xe3bed)
		for i := 0; i < embeddingSize; i += 64 {
			for bit, signs := 0, random.Uint64(); bit < 64; bit++ {
				v[i+bit] += float64(int(signs>>bit&1)*2 - 1)
			}
		}
	}
	sum := 0.0
	for _, x := range v {
		sum += x * x
	}
	for i := range v {
		v[i] /= math.Sqrt(max(sum, 1))
	}
	return v
}

// appendVector appends a vector as a list of numbers, or as a text of its 32-bit floats.
func appendVector(b []byte, v [embeddingSize]float64, packed bool) []byte {
	if packed {
		raw := make([]byte, 0, 4*embeddingSize)
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
		}
		return quote(b, base64.StdEncoding.EncodeToString(raw))
	}
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, x, 'g', 8, 32)
	}
	return append(b, ']')
}

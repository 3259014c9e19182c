package envoy

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestSameAnswers checks that all estimators that read bodies, inside Envoy or beside it, send
// every request to the same stage with the same headers.
func TestSameAnswers(t *testing.T) {
	for _, e := range []resources.Estimator{resources.ExtProc, resources.Wasm} {
		t.Run(string(e), func(t *testing.T) {
			v := view()
			v.Settings.Estimator = e
			if e == resources.Wasm {
				v.Settings.Module = module(t)
			}
			answers(t, startHarness(t, v))
		})
	}
}

func answers(t *testing.T, r *harness) {
	estimator := length.Estimator{BytesPerToken: 4000}
	on := func(t *testing.T) *harness { g := *r; g.t = t; return &g }

	t.Run("by length header", func(t *testing.T) {
		r := on(t)
		for _, n := range valuesAround(400, 4000, 220<<10) {
			want := int(estimator.FromContentLength(int64(n)))
			r.expect(fmt.Sprintf("%d bytes", n), r.post("m.test", bytes.NewReader(sized("m", n))), stageOf(want), strconv.Itoa(want), "m", n)
		}
	})
	t.Run("by body, chunked", func(t *testing.T) {
		r := on(t)
		for _, tokens := range valuesAround(100, 1000, 55<<10) {
			for _, n := range []int{4 * tokens, 4*tokens + 3} {
				body := completion("m", n)
				r.expect(fmt.Sprintf("%d bytes of text", n), r.post("m.test", chunked{bytes.NewReader(body)}), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
			}
			body := completion("m", 4*tokens)
			pieces := chunked{slow{bytes.NewReader(body), 1 + len(body)/7}}
			r.expect(fmt.Sprintf("%d bytes in pieces", len(body)), r.post("m.test", pieces), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
		}
		for _, tokens := range valuesAround(100, 1000) {
			body := []byte(`{"model":"m","prompt":[` + strings.Repeat("70000,", tokens-1) + `7]}`)
			r.expect(fmt.Sprintf("%d token ids", tokens), r.post("m.test", chunked{bytes.NewReader(body)}), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
		}
		body := completion("m", 2<<20)
		r.expect("2 MiB", r.post("m.test", chunked{bytes.NewReader(body)}), "m2", strconv.Itoa(2<<20/4), "m", len(body))
		body = []byte(`{"prompt":"x`)
		r.expect("malformed", r.post("m.test", chunked{bytes.NewReader(body)}), "m0", "3", "m", len(body))
		r.expect("malformed and long", r.post("m.test", chunked{strings.NewReader(strings.Repeat("x", 220<<10))}), "m2", "56320", "m", 220<<10)
	})
	t.Run("by body, shared host", func(t *testing.T) {
		r := on(t)
		for _, tokens := range valuesAround(100, 1000, 55<<10) {
			body := completion("m", 4*tokens)
			r.expect(fmt.Sprintf("m, %d tokens", tokens), r.post("else.test:8080", bytes.NewReader(body)), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
			body = completion("m-lora", 4*tokens)
			r.expect(fmt.Sprintf("an adapter, %d tokens", tokens), r.post("else.test", bytes.NewReader(body)), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
		}
		body := completion("n/2", 400)
		r.expect("n", r.post("else.test", bytes.NewReader(body)), "n0", "200", "n/2", len(body))
		r.expect("n, chunked", r.post("else.test", chunked{bytes.NewReader(body)}), "n0", "200", "n/2", len(body))
		for _, model := range []string{"q", "", strings.Repeat("m", 300)} {
			if got := r.post("else.test", bytes.NewReader(completion(model, 400))); got.Status != 404 || !strings.Contains(got.Raw, "model_not_found") {
				t.Errorf("unknown model %q: %+v", model, got)
			}
		}
		body = completion("m", 2<<20)
		r.expect("2 MiB", r.post("else.test", bytes.NewReader(body)), "m2", strconv.Itoa(2<<20/4), "m", len(body))
		if got, err := r.send("POST", "else.test", bytes.NewReader(make([]byte, bodyLimit+1))); err == nil && (got.Status != 413 || !strings.Contains(got.Raw, "request_too_large")) {
			t.Errorf("larger than what is held: %+v", got)
		}
	})
	t.Run("forged headers", func(t *testing.T) {
		r := on(t)
		long := sized("m", 5000)
		for _, forged := range [][]string{
			{"x-cascade-tokens", "5", "x-gateway-model-name", "m"},
			{"x-cascade-tokens", "5000", "x-cascade-tokens", "5", "x-gateway-model-name", "m", "x-gateway-model-name", "n/2"},
			{"X-Cascade-Tokens", "5", "x-cascade-tokens", "abc", "X-Cascade-Other", "1", "x-cascade-other", "2"},
		} {
			r.expect(fmt.Sprint("by length, ", forged), r.post("m.test", bytes.NewReader(long), forged...), "m2", "1250", "m", len(long))
			r.expect(fmt.Sprint("by body, ", forged), r.post("else.test", bytes.NewReader(long), forged...), "m2", strconv.Itoa((len(long)-len(completion("m", 0)))/4), "m", len(long))
			got, err := r.send("GET", "m.test", nil, forged...)
			testkit.NoError(t, err)
			r.expect(fmt.Sprint("no body, ", forged), got, "m2", "", "m", 0)
			if got, err := r.send("GET", "else.test", nil, forged...); err != nil || got.Status != 404 {
				t.Errorf("no body and no model, %v: %+v, %v", forged, got, err)
			}
		}
	})
	t.Run("h2c with trailers", func(t *testing.T) {
		r := on(t)
		h2 := &http.Transport{Protocols: new(http.Protocols)}
		h2.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(h2.CloseIdleConnections)
		r.client.Transport = h2
		for _, n := range []int{400, 220 << 10} {
			body := completion("m", n)
			r.expect("trailers", r.post("m.test", trailed{bytes.NewReader(body)}), stageOf(n/4), strconv.Itoa(n/4), "m", len(body))
			r.expect("trailers, shared host", r.post("else.test", trailed{bytes.NewReader(body)}), stageOf(n/4), strconv.Itoa(n/4), "m", len(body))
		}
	})
}

package inprocess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// boundaries are cuts from one token to the whole context, seven per plan.
var boundaries = [][]policies.Tokens{
	{1, 2, 3, 4, 8, 16, 32},
	{64, 100, 128, 256, 512, 1000, 1024},
	{2048, 4096, 8192, 16384, 32768, 56320, 65536},
	{7, 131071, 131072},
}

// cut divides eight replicas at the given cuts: one replica per stage, and the rest in the last
// stage.
func cut(cuts []policies.Tokens) []policies.Stage {
	var members [][]policies.ReplicaID
	for i := range len(cuts) {
		members = append(members, ids(i))
	}
	return stages(cuts, append(members, ids(0, 1, 2, 3, 4, 5, 6, 7)[len(cuts):])...)
}

// large is the length above which the tests send fewer kinds of requests, because their bodies take
// most of the time.
const large policies.Tokens = 4096

// probe is a request whose estimate the test knows.
type probe struct {
	what   string
	body   io.Reader
	host   string
	header []string
	tokens policies.Tokens
}

// requireStage sends a probe and checks its stage. The workers of a proxy apply a plan one after the other,
// so land repeats a probe that the previous plan answered.
func (r *fleetHarness) requireStage(p policies.Plan, q func() probe, want int) {
	r.T.Helper()
	var got reply
	x := q()
	r.WaitFor("an answer by the plan", func() bool {
		x = q()
		var err error
		if got, err = r.send("/v1/completions", x.host, x.body, x.header...); err != nil {
			r.T.Fatalf("%s, %d tokens: %v", x.what, x.tokens, err)
		}
		return got.epoch >= p.Epoch
	})
	if got.stage != resources.StageName(want) || got.status != http.StatusBadRequest && got.status != http.StatusOK {
		r.T.Errorf("%s, %d tokens: status %d, stage %q, want %q of %v", x.what, x.tokens, got.status, got.stage, resources.StageName(want), p.Stages)
	}
}

// forged are headers by which a client must not be able to influence routing.
var forged = []string{
	length.TokensHeader, "1", length.TokensHeader, "99999999", length.TokensHeader, "abc",
	length.ModelHeader, "n", length.ModelHeader, llm, "x-cascade-anything", "1",
}

// TestBoundaries checks that a request one token below, at and one above every boundary goes to the
// right stage, whatever length the client's headers claim. Without CASCADE_TEST_ALL=1 each data plane
// has one estimator here: e2e/envoy has Envoy with all of them, and xds/proxy the embedded proxy.
func TestBoundaries(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		if envoy != "" || everything {
			t.Run("content-length", func(t *testing.T) { testContentLength(t, envoy) })
		}
		if envoy == "" || everything {
			t.Run("ext_proc", func(t *testing.T) { testExtProc(t, envoy) })
		}
	})
}

// testContentLength tests one model without an external processor.
func testContentLength(t *testing.T, envoy string) {
	r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 8})
	const perToken = 4
	sent := 0
	for _, cuts := range boundaries {
		p := r.plan(cut(cuts)...)
		for i, c := range cuts {
			for k, n := range []policies.Tokens{c - 1, c, c + 1} {
				for j, size := range []int{max(1, perToken*int(n)), perToken*int(n) + perToken - 1} {
					header := [][]string{forged, nil}[(i+j+k)%2]
					r.requireStage(p, func() probe {
						return probe{"by size", bytes.NewReader(refused(size)), "", header, n}
					}, p.StageOf(n))
					sent++
				}
			}
		}
	}
	// A prompt of 220 KiB, to its engine and back, on both sides of a boundary; and one without
	// content-length.
	const size = 220 << 10
	at := policies.Tokens(size / perToken)
	p := r.plan(cut([]policies.Tokens{100, at, 100_000})...)
	for i, n := range []int{size - 1, size, size + perToken} {
		before := r.counts()
		want := min(i, 1) + 1
		got, err := r.send("/v1/completions", "", bytes.NewReader(prompt(n, 1)), forged...)
		if err != nil || got.status != http.StatusOK || got.stage != resources.StageName(want) {
			t.Errorf("%d bytes: status %d, stage %q, want %d; %v %.200s", n, got.status, got.stage, want, err, got.body)
		}
		if who := r.countsSince(before); len(who) != 1 || who[string(p.Stages[want].Replicas[0])] != 1 {
			t.Errorf("%d bytes were served by %v, want %v", n, who, p.Stages[want].Replicas)
		}
	}
	got, err := r.send("/v1/completions", "", chunked{bytes.NewReader(text(at, 0))})
	want := "s3" // its length is unknown: it goes to the stage that accepts any length
	if envoy == "" {
		want = "s2" // the embedded proxy always has its estimator
	}
	if err != nil || got.stage != want {
		t.Errorf("chunked: stage %q, want %q; %v", got.stage, want, err)
	}
	t.Logf("%d requests at %d boundaries", sent+4, len(boundaries[0])+len(boundaries[1])+len(boundaries[2])+len(boundaries[3])+1)
}

// testExtProc tests two models on one host name, and one on a host name of its own.
func testExtProc(t *testing.T, envoy string) {
	ratio := func(c *control.Config) {
		keepReplicas(c)
		c.Rules.Models[1].BytesPerToken = length.RatioOf(2)
	}
	r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 8, control: ratio, edit: func(f *config.Fleet) {
		f.Control.Estimator = "ext_proc"
		f.Control.PrefixKeys = config.PrefixKeysOff // with them a body is read even if its size suffices
		f.Proxy.BodyLimit = 3
		f.Models[0].Hosts = []string{"m.example"}
		f.Models = append(f.Models, config.Model{Name: "org/n", Context: 1000, Profile: f.Models[0].Profile})
		f.Replicas = append(f.Replicas, config.Replica{ID: "n0", Model: "org/n", Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0"},
			config.Replica{ID: "n1", Model: "org/n", Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0"})
	}})
	const perToken = 4
	sent := 0
	for _, cuts := range boundaries {
		p := r.plan(cut(cuts)...)
		for i, c := range cuts {
			for k, n := range []policies.Tokens{c - 1, c, c + 1} {
				header := [][]string{nil, forged}[(i+k)%2]
				r.requireStage(p, func() probe {
					return probe{"headers alone", bytes.NewReader(refused(max(1, perToken*int(n)))), "m.example", header, n}
				}, p.StageOf(n))
				for _, over := range []int{perToken - 1, 0} {
					if over == 0 && n > large {
						continue
					}
					// A body that is not JSON, or has no prompt, is measured whole.
					r.requireStage(p, func() probe {
						return probe{"chunked body, model by host", chunked{bytes.NewReader(text(n, over))}, "m.example", header, n}
					}, p.StageOf(n))
					r.requireStage(p, func() probe {
						return probe{"sized body, model in it", bytes.NewReader(text(n, over)), "any.example", header, n}
					}, p.StageOf(n))
				}
				sent += 5
				r.requireStage(p, func() probe {
					return probe{"chunked body, model in it", chunked{bytes.NewReader(text(n, 0))}, "any.example", header, n}
				}, p.StageOf(n))
				r.requireStage(p, func() probe {
					return probe{"token ids", bytes.NewReader(tokenIDs(n)), "any.example", header, n}
				}, p.StageOf(n))
			}
		}
	}
	// The other model has its own stages and ratio.
	p := r.write(policies.Plan{Model: "org/n", Stages: []policies.Stage{
		{Low: 0, High: 500, Replicas: []policies.ReplicaID{"n0"}}, {Low: 500, High: policies.Unbounded, Replicas: []policies.ReplicaID{"n1"}},
	}})
	for _, n := range []int{499, 500, 501} {
		r.requireStage(p, func() probe {
			body := fmt.Sprintf(`{"model":"org\/n","prompt":%q,"max_tokens":-1}`, strings.Repeat("x", 2*n))
			return probe{"the other model", strings.NewReader(body), "any.example", forged, policies.Tokens(n)}
		}, p.StageOf(policies.Tokens(n)))
	}
	// An unknown model, or none, is an error in the API's format.
	for _, body := range []string{`{"model":"none","prompt":"x"}`, `{"prompt":"x"}`, `nonsense`, ``} {
		for _, header := range [][]string{nil, forged} {
			got, err := r.send("/v1/completions", "any.example", strings.NewReader(body), header...)
			testkit.NoError(t, err)
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal(got.body, &e); err != nil || got.status != http.StatusNotFound || e.Error.Code != "model_not_found" || e.Error.Type != "invalid_request_error" || e.Error.Message == "" {
				t.Errorf("%q: status %d, %s", body, got.status, got.body)
			}
		}
	}
	// A body larger than proxy.body_limit: for the estimator, the front end or the proxy. If the request has
	// no content-length, Envoy sometimes rejects it only after the estimator's deadline (its buffer
	// is full before the estimator has requested the body), so this case runs on the embedded proxy
	// alone.
	oversized := make([]byte, 4<<20)
	cases := map[string]probe{
		"by the estimator": {host: "any.example", body: bytes.NewReader(oversized)},
		"by the front":     {host: "m.example", body: bytes.NewReader(oversized)},
	}
	if envoy == "" {
		cases["by the proxy"] = probe{host: "any.example", body: chunked{bytes.NewReader(oversized)}}
	}
	for name, x := range cases {
		got, err := r.send("/v1/completions", x.host, x.body)
		if err != nil || got.status != http.StatusRequestEntityTooLarge || !strings.Contains(string(got.body), "3145728") {
			t.Errorf("oversized, refused %s: %v, status %d, %.200s", name, err, got.status, got.body)
		}
	}
	t.Logf("%d requests or more", sent+3)
}

// refused returns a body of exactly size bytes that a front end or an engine rejects, so that it
// costs only its transfer. It names the model if it is long enough.
func refused(size int) []byte {
	head := []byte(`{"model":"` + llm + `","max_tokens":-1,"prompt":"`)
	if size < len(head)+2 {
		return bytes.Repeat([]byte("x"), size)
	}
	out := append(make([]byte, 0, size), head...)
	out = append(out, bytes.Repeat([]byte("x"), size-len(head)-2)...)
	return append(out, `"}`...)
}

// text returns a body, rejected by engines, whose prompt has the bytes of n tokens plus over bytes.
func text(n policies.Tokens, over int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"max_tokens":-1,"prompt":"`)
	b.Write(bytes.Repeat([]byte("y"), 4*int(n)+over))
	b.WriteString(`","model":"` + llm + `"}`)
	return b.Bytes()
}

// tokenIDs returns a body, rejected by engines, whose prompt is n token ids.
func tokenIDs(n policies.Tokens) []byte {
	var b bytes.Buffer
	b.WriteString(`{"max_tokens":-1,"prompt":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte(byte('1' + i%9))
	}
	b.WriteString(`],"model":"` + llm + `"}`)
	return b.Bytes()
}

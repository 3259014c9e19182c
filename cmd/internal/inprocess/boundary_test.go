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
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// boundaries are cuts from one token to the whole context, seven to a plan.
var boundaries = [][]policies.Tokens{
	{1, 2, 3, 4, 8, 16, 32},
	{64, 100, 128, 256, 512, 1000, 1024},
	{2048, 4096, 8192, 16384, 32768, 56320, 65536},
	{7, 131071, 131072},
}

// cut divides eight replicas at the given cuts: one to a stage, and the last
// stage has the rest.
func cut(cuts []policies.Tokens) []policies.Stage {
	var members [][]policies.ReplicaID
	for i := range len(cuts) {
		members = append(members, ids(i))
	}
	return stages(cuts, append(members, ids(0, 1, 2, 3, 4, 5, 6, 7)[len(cuts):])...)
}

// large is the length above which fewer kinds of requests are made: their
// bodies are what takes time.
const large policies.Tokens = 4096

// probe is a request of which the test knows the estimate.
type probe struct {
	what   string
	body   io.Reader
	host   string
	header []string
	tokens policies.Tokens
}

// land sends a probe and checks its stage. Workers of a proxy take up a plan
// one after the other, so an answer by the plan before is asked for again.
func (r *fleetHarness) land(p policies.Plan, q func() probe, want int) {
	r.t.Helper()
	var got reply
	x := q()
	r.wait("an answer by the plan", func() bool {
		x = q()
		var err error
		if got, err = r.send("/v1/completions", x.host, x.body, x.header...); err != nil {
			r.t.Fatalf("%s, %d tokens: %v", x.what, x.tokens, err)
		}
		return got.epoch >= p.Epoch
	})
	if got.stage != resources.StageName(want) || got.status != http.StatusBadRequest && got.status != http.StatusOK {
		r.t.Errorf("%s, %d tokens: status %d, stage %q, want %q of %v", x.what, x.tokens, got.status, got.stage, resources.StageName(want), p.Stages)
	}
}

// forged are headers that a client must not be able to steer by.
var forged = []string{
	length.TokensHeader, "1", length.TokensHeader, "99999999", length.TokensHeader, "abc",
	length.ModelHeader, "n", length.ModelHeader, llm, "x-cascade-anything", "1",
}

// TestBoundaries: a request one token below, at and one above every boundary
// goes to the right stage, whatever the client says about it.
func TestBoundaries(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		t.Run("content-length", func(t *testing.T) { testContentLength(t, envoy) })
		t.Run("ext_proc", func(t *testing.T) { testExtProc(t, envoy) })
	})
}

// testContentLength: one model, no callout.
func testContentLength(t *testing.T, envoy string) {
	r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 8})
	const perToken = 4
	sent := 0
	for _, cuts := range boundaries {
		p := r.plan(cut(cuts)...)
		for _, c := range cuts {
			for _, n := range []policies.Tokens{c - 1, c, c + 1} {
				for _, size := range []int{max(1, perToken*int(n)), perToken*int(n) + perToken - 1} {
					for _, header := range [][]string{forged, nil} {
						if header == nil && n > large {
							continue
						}
						r.land(p, func() probe {
							return probe{"by size", bytes.NewReader(refused(size)), "", header, n}
						}, p.StageOf(n))
						sent++
					}
				}
			}
		}
	}
	// A prompt of 220 KiB, through to its engine and back, on both sides of a
	// boundary; and one without a stated size.
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
		if who := r.since(before); len(who) != 1 || who[string(p.Stages[want].Replicas[0])] != 1 {
			t.Errorf("%d bytes were served by %v, want %v", n, who, p.Stages[want].Replicas)
		}
	}
	got, err := r.send("/v1/completions", "", chunked{bytes.NewReader(text(at, 0))})
	want := "s3" // nothing says how long it is: the stage that takes any length
	if envoy == "" {
		want = "s2" // the embedded proxy has its estimator at hand
	}
	if err != nil || got.stage != want {
		t.Errorf("chunked: stage %q, want %q; %v", got.stage, want, err)
	}
	t.Logf("%d requests at %d boundaries", sent+4, len(boundaries[0])+len(boundaries[1])+len(boundaries[2])+len(boundaries[3])+1)
}

// testExtProc: two models on one host name, and one by a host name of its own.
func testExtProc(t *testing.T, envoy string) {
	// On a busy machine an answer comes late, and then the last stage serves.
	patient := func(c *control.Config) { c.Settings.LengthTimeout = patience }
	r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 8, control: patient, edit: func(f *config.Fleet) {
		f.Control.Estimator = "ext_proc"
		f.Models[0].Hosts = []string{"m.example"}
		f.Models = append(f.Models, config.Model{Name: "org/n", Context: 1000, Profile: f.Models[0].Profile, BytesPerToken: 2})
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
				r.land(p, func() probe {
					return probe{"headers alone", bytes.NewReader(refused(max(1, perToken*int(n)))), "m.example", header, n}
				}, p.StageOf(n))
				for _, over := range []int{perToken - 1, 0} {
					if over == 0 && n > large {
						continue
					}
					// What is no JSON, or has no prompt, is measured whole.
					r.land(p, func() probe {
						return probe{"chunked body, model by host", chunked{bytes.NewReader(text(n, over))}, "m.example", header, n}
					}, p.StageOf(n))
					r.land(p, func() probe {
						return probe{"sized body, model in it", bytes.NewReader(text(n, over)), "any.example", header, n}
					}, p.StageOf(n))
				}
				sent += 5
				r.land(p, func() probe {
					return probe{"chunked body, model in it", chunked{bytes.NewReader(text(n, 0))}, "any.example", header, n}
				}, p.StageOf(n))
				r.land(p, func() probe {
					return probe{"token ids", bytes.NewReader(tokenIDs(n)), "any.example", header, n}
				}, p.StageOf(n))
			}
		}
	}
	// The other model has stages and a ratio of its own.
	p := r.write(policies.Plan{Model: "org/n", Stages: []policies.Stage{
		{Low: 0, High: 500, Replicas: []policies.ReplicaID{"n0"}}, {Low: 500, High: policies.Unbounded, Replicas: []policies.ReplicaID{"n1"}},
	}})
	for _, n := range []int{499, 500, 501} {
		r.land(p, func() probe {
			body := fmt.Sprintf(`{"model":"org\/n","prompt":%q,"max_tokens":-1}`, strings.Repeat("x", 2*n))
			return probe{"the other model", strings.NewReader(body), "any.example", forged, policies.Tokens(n)}
		}, p.StageOf(policies.Tokens(n)))
	}
	// A model that is not there, or none, is an error of the API's shape.
	for _, body := range []string{`{"model":"none","prompt":"x"}`, `{"prompt":"x"}`, `nonsense`, ``} {
		for _, header := range [][]string{nil, forged} {
			got, err := r.send("/v1/completions", "any.example", strings.NewReader(body), header...)
			if err != nil {
				t.Fatal(err)
			}
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal(got.body, &e); err != nil || got.status != http.StatusNotFound || e.Error.Code != "model_not_found" || e.Error.Type != "invalid_request_error" || e.Error.Message == "" {
				t.Errorf("%q: status %d, %s", body, got.status, got.body)
			}
		}
	}
	// A body beyond what is held, by whoever would have to: the estimator, the
	// front, the proxy. Without a length, Envoy sometimes (its buffer full before
	// the estimator has asked for the body) says so only when the estimator's
	// deadline is over, so that is for the embedded proxy alone.
	oversized := make([]byte, 17<<20)
	cases := map[string]probe{
		"by the estimator": {host: "any.example", body: bytes.NewReader(oversized)},
		"by the front":     {host: "m.example", body: bytes.NewReader(oversized)},
	}
	if envoy == "" {
		cases["by the proxy"] = probe{host: "any.example", body: chunked{bytes.NewReader(oversized)}}
	}
	for name, x := range cases {
		got, err := r.send("/v1/completions", x.host, x.body)
		if err != nil || got.status != http.StatusRequestEntityTooLarge || !strings.Contains(string(got.body), "16777216") {
			t.Errorf("oversized, refused %s: %v, status %d, %.200s", name, err, got.status, got.body)
		}
	}
	t.Logf("%d requests or more", sent+3)
}

// refused is a body of exactly size bytes that a front or an engine refuses,
// so that only its way there costs anything. It names the model where it has
// the room.
func refused(size int) []byte {
	head := []byte(`{"model":"` + llm + `","max_tokens":-1,"prompt":"`)
	if size < len(head)+2 {
		return bytes.Repeat([]byte("x"), size)
	}
	out := append(make([]byte, 0, size), head...)
	out = append(out, bytes.Repeat([]byte("x"), size-len(head)-2)...)
	return append(out, `"}`...)
}

// text is a body, refused by engines, whose prompt has n tokens' bytes and
// some over.
func text(n policies.Tokens, over int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"max_tokens":-1,"prompt":"`)
	b.Write(bytes.Repeat([]byte("y"), 4*int(n)+over))
	b.WriteString(`","model":"` + llm + `"}`)
	return b.Bytes()
}

// tokenIDs is a body, refused by engines, whose prompt is n token ids.
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

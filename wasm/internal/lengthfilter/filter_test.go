package lengthfilter

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// encoded returns the metadata of a virtual host, as a proxy passes it.
func encoded(t testing.TB, fields map[string]any) []byte {
	t.Helper()
	s := testkit.Must(structpb.NewStruct(fields))
	data, err := proto.Marshal(&corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"other": {Fields: map[string]*structpb.Value{"model": structpb.NewStringValue("wrong")}}, metadataKey: s,
	}})
	testkit.NoError(t, err)
	return data
}

func one(t testing.TB) []byte {
	return encoded(t, map[string]any{"model": "org/m", "bytes_per_token": 2.0, "context": 1e6, "adapters": []any{"a"}})
}

func several(t testing.TB) []byte {
	return encoded(t, map[string]any{"models": []any{
		map[string]any{"model": "org/m", "bytes_per_token": 2.0, "context": 1e6, "adapters": []any{"a", "n"}},
		map[string]any{"model": "n", "context": 1e6},
	}})
}

func must(t testing.TB, c Config) *Filter {
	t.Helper()
	return testkit.Must(New(c))
}

// whole passes a request with its body to a filter, in chunks of n bytes.
func whole(f *Filter, metadata []byte, h length.Headers, body string, n int) Answer {
	a, b := f.Headers(metadata, h)
	if a.Action != Wait {
		return a
	}
	defer b.Close()
	for len(body) > 0 {
		k := min(n, len(body))
		if !b.Write([]byte(body[:k])) {
			return Answer{Action: Reject}
		}
		body = body[k:]
	}
	return b.End()
}

func TestAnswers(t *testing.T) {
	reads := Config{ReadBody: true, MaxBody: 1000}
	body := func(model string, n int) string {
		return `{"model":"` + model + `","prompt":"` + strings.Repeat("x", n) + `"}`
	}
	for _, c := range []struct {
		name     string
		config   Config
		metadata []byte
		headers  length.Headers
		body     string
		want     Answer
	}{
		{"no body, one model", reads, one(t), length.Headers{Ended: true}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: -1}},
		{"no body, several", reads, several(t), length.Headers{Ended: true}, "", Answer{Action: SetHeaders, Model: "", Tokens: -1}},
		{"sized", reads, one(t), length.Headers{ContentLength: "20"}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: 10}},
		{"sized, more than is read", reads, one(t), length.Headers{ContentLength: "4000"}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: 2000}},
		{"the largest", reads, one(t), length.Headers{ContentLength: "9223372036854775807"}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: 1<<62 - 1}},
		{"chunked", reads, one(t), length.Headers{}, body("q", 41), Answer{Action: SetHeaders, Model: "org/m", Tokens: 20}},
		{"model in the body", reads, several(t), length.Headers{ContentLength: "99"}, body("org/m", 41), Answer{Action: SetHeaders, Model: "org/m", Tokens: 20}},
		{"escaped", reads, several(t), length.Headers{ContentLength: "99"}, body(`org\/m`, 41), Answer{Action: SetHeaders, Model: "org/m", Tokens: 20}},
		{"its adapter", reads, several(t), length.Headers{ContentLength: "99"}, body("a", 41), Answer{Action: SetHeaders, Model: "org/m", Tokens: 20}},
		{"a name beats an adapter", reads, several(t), length.Headers{ContentLength: "99"}, body("n", 41), Answer{Action: SetHeaders, Model: "n", Tokens: 10}},
		{"no such model", reads, several(t), length.Headers{ContentLength: "99"}, body("q", 41), Answer{Action: SetHeaders, Model: "", Tokens: 10}},
		{"no JSON", reads, several(t), length.Headers{}, "abcdefgh", Answer{Action: SetHeaders, Model: "", Tokens: 2}},
		{"too large", reads, several(t), length.Headers{ContentLength: "1001"}, "", Answer{Action: Reject}},
		{"too large, chunked", reads, one(t), length.Headers{}, strings.Repeat("x", 1001), Answer{Action: Reject}},
		{"as large as may be", reads, one(t), length.Headers{}, strings.Repeat("x", 1000), Answer{Action: SetHeaders, Model: "org/m", Tokens: 500}},
		{"must not hold: chunked", Config{}, one(t), length.Headers{}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: -1}},
		{"must not hold: sized", Config{}, one(t), length.Headers{ContentLength: "20"}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: 10}},
		{"must not hold: several", Config{}, several(t), length.Headers{ContentLength: "2000000000"}, "", Answer{Action: SetHeaders, Model: "", Tokens: -1}},
		{"no models listed", reads, nil, length.Headers{}, "", Answer{}},
		{"not ours", reads, []byte{0x0a, 0x00}, length.Headers{}, "", Answer{}},
		{"unreadable", reads, []byte{0x0a, 0x7f, 1}, length.Headers{}, "", Answer{}},
		{"bad name", reads, encoded(t, map[string]any{"model": "a\nb"}), length.Headers{}, "", Answer{}},
		{"by configuration", Config{Models: []Model{{Name: "c", BytesPerToken: 1}}}, nil, length.Headers{ContentLength: "20"}, "", Answer{Action: SetHeaders, Model: "c", Tokens: 20}},
		{"metadata first", Config{Models: []Model{{Name: "c", BytesPerToken: 1}}}, one(t), length.Headers{ContentLength: "20"}, "", Answer{Action: SetHeaders, Model: "org/m", Tokens: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := must(t, c.config)
			for _, n := range []int{1, 7, 1 << 20, 1} { // in the second round it knows the host
				if got := whole(f, c.metadata, c.headers, c.body, n); got != c.want {
					t.Errorf("in chunks of %d: %+v, want %+v", n, got, c.want)
				}
			}
		})
	}
}

func TestOpenEnd(t *testing.T) {
	f := must(t, Config{Models: []Model{{Name: "m", BytesPerToken: 0.5}}})
	if a, _ := f.Headers(nil, length.Headers{ContentLength: "9223372036854775807"}); a.Tokens != policies.Unbounded-1 {
		t.Errorf("%d tokens are in no range", a.Tokens)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{{MaxBody: -1}, {Models: []Model{{}}}, {Models: []Model{{Name: "a\x7f"}}}, {Models: []Model{{Name: strings.Repeat("x", 257)}}}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// TestManyHosts checks that the hosts that a Filter remembers are bounded, because route tables
// change.
func TestManyHosts(t *testing.T) {
	f := must(t, Config{})
	for i := range 10 * maxHosts {
		data := encoded(t, map[string]any{"model": "m", "bytes_per_token": 1 + float64(i)/100})
		want := length.Estimator{BytesPerToken: length.RatioOf(1 + float64(i)/100)}.FromContentLength(9999)
		for range 2 {
			if a, _ := f.Headers(data, length.Headers{ContentLength: "9999"}); a.Tokens != want {
				t.Fatalf("host %d: %d tokens, want %d", i, a.Tokens, want)
			}
		}
	}
	if len(f.hosts) > maxHosts {
		t.Errorf("%d hosts are remembered", len(f.hosts))
	}
}

// TestAllocates checks that requests of a known host allocate nothing: a module's garbage is
// collected on the proxy's own thread.
func TestAllocates(t *testing.T) {
	f, data := must(t, Config{ReadBody: true}), several(t)
	body := []byte(`{"model":"a","prompt":"xxxxxxxxxxxxxx"}`)
	if n := testing.AllocsPerRun(100, func() {
		_, b := f.Headers(data, length.Headers{})
		b.Write(body)
		b.End()
		b.Close()
	}); n > 0 && !testkit.RaceEnabled {
		t.Errorf("%v allocations a request", n)
	}
}

// FuzzMetadata checks that reading arbitrary metadata ends, that the result is a valid header,
// and that the metadata of a control plane is read as by the protobuf library.
func FuzzMetadata(f *testing.F) {
	f.Add(one(f))
	f.Add(several(f))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, data []byte) {
		models, err := decodeMetadata(data)
		if err != nil {
			return
		}
		for _, m := range models {
			if m.validate() != nil {
				t.Errorf("model %q", m.Name)
			}
		}
		var md corev3.Metadata
		if proto.Unmarshal(data, &md) != nil {
			return
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(&md)
		if err != nil {
			return
		}
		if s := md.GetFilterMetadata()[metadataKey].GetFields(); s["models"] == nil && len(models) == 1 {
			if canonical, err := decodeMetadata(again); err == nil && len(canonical) == 1 && s["model"].GetStringValue() != canonical[0].Name {
				t.Errorf("model %q, and the library reads %q", canonical[0].Name, s["model"].GetStringValue())
			}
		}
	})
}

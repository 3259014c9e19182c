package length

import (
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestPrefixKeys checks that the service gives requests the keys that length.Prefixes makes, and
// asks for a body whose size would suffice only if the model has such keys.
func TestPrefixKeys(t *testing.T) {
	prefixes := map[string]length.Prefixes{"m": {Depth: 512, Secret: length.PrefixSecret{1}}, "n": {Depth: 4096, Secret: length.PrefixSecret{2}}}
	s, err := New(Config{
		Models:   []Model{{Name: "m", Hosts: []string{"m.test", "all.test"}}, {Name: "n", Hosts: []string{"n.test", "all.test"}}, {Name: "o", Hosts: []string{"o.test", "all.test"}}},
		Prefixes: func(model string) length.Prefixes { return prefixes[model] },
	})
	testkit.NoError(t, err)
	for _, c := range []struct {
		host, model string
		size        int
		asks        bool   // for the body
		served      string // whose key is expected; "" for none
	}{
		{"m.test", "m", 5000, true, "m"}, {"n.test", "n", 5000, true, "n"}, {"all.test", "m", 5000, true, "m"}, {"all.test", "n", 5000, true, "n"},
		{"m.test", "adapter", 600, true, "m"}, {"m.test", "m", 100, false, ""}, {"o.test", "o", 5000, false, ""}, {"all.test", "o", 5000, true, ""}, {"all.test", "q", 5000, true, ""},
	} {
		body := []byte(`{"model":"` + c.model + `","prompt":"` + strings.Repeat("x", c.size) + `"}`)
		x := exchange{server: s}
		answer, err := x.onHeaders(&extproc.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":authority", RawValue: []byte(c.host)}, {Key: "content-length", RawValue: []byte(strconv.Itoa(len(body)))},
		}}}, nil)
		if err != nil || x.waiting != c.asks {
			t.Errorf("%s, model %s, %d bytes: the body is requested: %v; %v", c.host, c.model, c.size, x.waiting, err)
			continue
		}
		common := answer.GetRequestHeaders().GetResponse()
		if x.waiting {
			common = x.onBody(body).GetRequestBody().GetResponse()
		}
		want, got := "", ""
		var scan length.Scanner
		scan.HashPrefix(length.MaxPrefixDepth)
		scan.Write(body)
		if key, ok := prefixes[c.served].Key(&scan); ok {
			want = key.String()
		}
		for _, h := range common.GetHeaderMutation().GetSetHeaders() {
			if h.Header.Key == length.PrefixHeader {
				got += string(h.Header.RawValue)
			}
		}
		removed := 0
		for _, name := range common.GetHeaderMutation().GetRemoveHeaders() {
			if name == length.PrefixHeader {
				removed++
			}
		}
		if got != want || (removed == 0) != (want != "") {
			t.Errorf("%s, model %s, %d bytes: key %q, want %q; removed %d times", c.host, c.model, c.size, got, want, removed)
		}
	}
}

package envoy

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// prefixView returns view with prefix keys.
func prefixView() resources.View {
	v := view()
	v.Settings.PrefixSecret = length.PrefixSecret{1, 2, 3}
	v.Models[0].PrefixDepth, v.Models[1].PrefixDepth = 512, 8192
	return v
}

// TestSamePrefixKeys checks that the service sets the key that the native estimator makes, whatever the
// client has sent. TestSameAnswers checks the same of the module inside Envoy.
func TestSamePrefixKeys(t *testing.T) {
	v := prefixView()
	v.Settings.Estimator = resources.ExtProc
	prefixKeys(startHarness(t, v))
}

// addPrefixKeys serves the settings of prefixView to a running Envoy, and waits until every worker has them.
func (r *harness) addPrefixKeys() {
	r.t.Helper()
	v, keys := r.view, prefixView()
	v.Settings.PrefixSecret, v.Models = keys.Settings.PrefixSecret, keys.Models
	r.serveView(v)
	testkit.WaitFor(r.t, "requests with a prefix key", func() bool {
		for range enough {
			r.client.CloseIdleConnections()
			for _, host := range []string{"m.test", "else.test"} {
				if got := r.post(host, bytes.NewReader(completion("m", 512))); got.Status != 200 || len(got.Prefix) != 1 {
					return false
				}
			}
		}
		return true
	})
}

func prefixKeys(r *harness) {
	v := prefixView()
	depths := map[string]int64{"m": 512, "m-lora": 512, "n/2": 8192}
	bases := map[string]string{"m": "m", "m-lora": "m", "n/2": "n/2"}
	expect := func(what, host, model string, body []byte, wrap func(io.Reader) io.Reader) {
		r.t.Helper()
		var s length.Scanner
		s.HashPrefix(length.MaxPrefixDepth)
		s.Write(body)
		served := bases[model]
		if host == "m.test" {
			served = "m"
		}
		var want []string
		if key, ok := v.Settings.Prefixes(served, depths[served]).Key(&s); ok {
			want = []string{key.String()}
		}
		for _, forged := range [][]string{nil, {"x-cascade-prefix", "0123456789abcdef", "X-Cascade-Prefix", "x"}} {
			got := r.post(host, wrap(bytes.NewReader(body)), forged...)
			if got.Status != 200 || !slices.Equal(got.Prefix, want) || !slices.Equal(got.Models, []string{served}) || len(got.Tokens) != 1 || got.Bytes != len(body) {
				r.t.Errorf("%s, forged %q: %+v, want key %q", what, forged, got, want)
			}
		}
	}
	sized := func(b io.Reader) io.Reader { return b }
	hidden := func(b io.Reader) io.Reader { return chunked{b} }
	for _, n := range []int{0, 255, 256, 511, 512, 513, 8191, 8192, 220 << 10, 2 << 20} {
		for model := range bases {
			body := completion(model, n)
			expect(fmt.Sprintf("%s, %d bytes, sized", model, n), "else.test", model, body, sized)
			expect(fmt.Sprintf("%s, %d bytes, chunked", model, n), "else.test", model, body, hidden)
		}
		expect(fmt.Sprintf("own host, %d bytes, sized", n), "m.test", "m", completion("m", n), sized)
		expect(fmt.Sprintf("own host, %d bytes, chunked", n), "m.test", "m", completion("m", n), hidden)
	}
	text := strings.Repeat(`a \"b\" \ud83d\ude00 \u00e9 `, 60)
	for what, body := range map[string]string{
		"messages":  `{"messages":[{"role":"system","content":"` + text + `"},{"role":"user","content":[{"type":"text","text":"x"}]}],"model":"m","cache_salt":"tenant"}`,
		"token ids": `{"model":"m","prompt":[` + strings.Repeat("17, 70000,", 300) + `1]}`,
		"malformed": `{"model":"m","prompt":"` + text,
		"no salt":   `{"model":"m","cache_salt":null,"input":"` + text + `"}`,
	} {
		expect(what, "m.test", "m", []byte(body), sized)
		expect(what+", chunked", "m.test", "m", []byte(body), hidden)
	}
	if got, err := r.send("GET", "m.test", nil, "x-cascade-prefix", "0123456789abcdef"); err != nil || got.Status != 200 || len(got.Prefix) > 0 {
		r.t.Errorf("a request without a body: %+v, %v", got, err)
	}
}

// TestPrefixesRehome counts which keys a real Envoy gives to another replica when weights, a
// boundary and the replicas of a stage change.
func TestPrefixesRehome(t *testing.T) {
	const most = 9 // replicas in the first stage; one more is always in the second
	keys := testkit.Size(150, 600)
	v := resources.View{
		Models:   []resources.Model{{Name: "m", Context: 1 << 20, BytesPerToken: 4000, PrefixDepth: 256}},
		Settings: prefixView().Settings,
	}
	v.Settings.Estimator = resources.ExtProc
	for i := range most + 1 {
		v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("m", i)), Model: "m"}})
	}
	// plan puts the first n replicas into the first stage.
	plan := func(n int, boundary policies.Tokens) {
		p := policies.Plan{Model: "m", Epoch: 1, Stages: []policies.Stage{{High: boundary}, {Low: boundary, High: policies.Unbounded}}}
		for i, e := range v.Endpoints {
			k := min(i/n, 1)
			p.Stages[k].Replicas = append(p.Stages[k].Replicas, e.ID)
		}
		v.Plans = []policies.Plan{p}
	}
	plan(most-1, 1000)
	r := startHarness(t, v)
	v = r.view // with addresses
	home := func(key int) string {
		body := fmt.Appendf(nil, `{"model":"m","prompt":"%s"}`, strings.Repeat(fmt.Sprintf("key %4d", key), 32))
		got := r.post("m.test", bytes.NewReader(body))
		if got.Status != 200 || len(got.Prefix) != 1 {
			t.Fatalf("key %d: %+v", key, got)
		}
		return got.By
	}
	homes := func() (out []string) {
		for key := range keys {
			out = append(out, home(key))
		}
		return out
	}
	// settled returns the homes once two rounds agree: Envoy's workers take an update at
	// different times.
	settled := func(what string, reached func([]string) bool) (out []string) {
		t.Helper()
		testkit.WaitFor(t, what, func() bool {
			before := out
			out = homes()
			return slices.Equal(before, out) && reached(out)
		})
		return out
	}
	any := func([]string) bool { return true }
	last := fmt.Sprint("m", most-1)
	before := settled("the first homes", any)
	if used := slices.Compact(slices.Sorted(slices.Values(before))); len(used) != most-1 {
		t.Fatalf("%d keys live on %v", keys, used)
	}

	for i := range v.Endpoints {
		v.Endpoints[i].Weight = uint32(1 + 10*i)
	}
	plan(most-1, 2000)
	r.serveView(v)
	testkit.WaitFor(t, "the new boundary", func() bool { return bytes.Contains(r.envoy.ConfigDump(), []byte(`"start": "2000"`)) })
	if got := settled("new weights and a new boundary", any); !slices.Equal(got, before) {
		t.Errorf("new weights and a new boundary moved keys: %v, then %v", before, got)
	}

	plan(most, 2000)
	r.serveView(v)
	grown := settled("one replica more", func(h []string) bool { return slices.Contains(h, last) })
	toNew, others := 0, 0
	for i := range grown {
		switch {
		case grown[i] == last:
			toNew++
		case grown[i] != before[i]:
			others++
		}
	}
	t.Logf("of %d keys, %d moved to the new replica and %d between the others", keys, toNew, others)
	share := float64(keys) / most
	if math.Abs(float64(toNew)-share) > 5*math.Sqrt(share) || others > keys/40 {
		t.Errorf("of %d keys, %d moved to the new replica and %d between the others; want about %.0f, and at most %d", keys, toNew, others, share, keys/40)
	}

	plan(most-1, 2000)
	r.serveView(v)
	if got := settled("one replica less", func(h []string) bool { return !slices.Contains(h, last) }); !slices.Equal(got, before) {
		t.Error("after the replica has left again, keys are not where they were")
	}

	// lose makes m0 unhealthy, and returns how many keys of the other replicas move within the first
	// stage, and how many keys go to the second.
	lose := func() (others, toNextStage int) {
		setHealth := func(h resources.Health) {
			for i := range v.Endpoints {
				if v.Endpoints[i].ID == "m0" {
					v.Endpoints[i].Health = h
				}
			}
			r.serveView(v)
		}
		stage := v.Plans[0].Stages[0].Replicas
		complete := settled(fmt.Sprintf("a stage of %d", len(stage)), func(h []string) bool {
			used := slices.Compact(slices.Sorted(slices.Values(h)))
			return len(used) == len(stage) && used[0] == "m0"
		})
		setHealth(resources.Unhealthy)
		for i, by := range settled("an unhealthy replica", func(h []string) bool { return !slices.Contains(h, "m0") }) {
			switch {
			case !slices.Contains(stage, policies.ReplicaID(by)):
				toNextStage++
			case complete[i] != "m0" && by != complete[i]:
				others++
			}
		}
		setHealth(resources.Healthy)
		return others, toNextStage
	}
	for _, n := range []int{3, 2, most - 1}[:testkit.Size(1, 3)] {
		plan(n, 2000)
		r.serveView(v)
		others, toNextStage := lose()
		t.Logf("of %d keys, an unhealthy replica of %d moves %d of the others' keys, and %d to the next stage", keys, n, others, toNextStage)
		if others > keys/40 || toNextStage > 0 {
			t.Errorf("an unhealthy replica of %d moves %d of the others' keys, and %d to the next stage; want at most %d, and none", n, others, toNextStage, keys/40)
		}
	}
}

// TestPrefixFailover checks on a real Envoy that half of the requests with one key, replicas
// that die, and a stage that has lost both replicas fail no request.
func TestPrefixFailover(t *testing.T) {
	v := prefixView()
	v.Models, v.Settings.Estimator = v.Models[:1], resources.ExtProc
	v.Settings.ConnectTimeout = time.Minute // a dial that a busy machine delays is no dead replica
	v.Endpoints = nil
	for i := range 6 {
		v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("m", i)), Model: "m"}})
	}
	v.Plans = []policies.Plan{{Model: "m", Epoch: 1, Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"m0", "m1", "m2"}},
		{Low: 1000, High: 4000, Replicas: []policies.ReplicaID{"m3", "m4"}},
		{Low: 4000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"m5"}},
	}}}
	r := startHarness(t, v)
	// send sends requests of about that many tokens, half of them with one key, and returns who
	// served them.
	send := func(tokens int) map[string]int {
		t.Helper()
		var mu sync.Mutex
		by := make(map[string]int)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				key := i * (i % 2)
				body := fmt.Appendf(nil, `{"model":"m","prompt":"%s%s"}`, strings.Repeat(fmt.Sprintf("key %4d", key), 64), strings.Repeat("x", max(0, 4*tokens-512)))
				got, err := r.send("POST", "m.test", bytes.NewReader(body))
				mu.Lock()
				defer mu.Unlock()
				if by[got.By]++; err != nil || got.Status != 200 || len(got.Prefix) != 1 {
					t.Errorf("request %d of %d tokens: %+v, %v", i, tokens, got, err)
				}
			})
		}
		wg.Wait()
		return by
	}
	only := func(by map[string]int, replicas ...string) {
		t.Helper()
		for name := range by {
			if !slices.Contains(replicas, name) {
				t.Errorf("served by %v, want only %v", by, replicas)
				return
			}
		}
	}
	by := send(128)
	only(by, "m0", "m1", "m2")
	hot := ""
	for name, n := range by {
		if n >= 50 {
			hot = name
		}
	}
	if hot == "" || len(by) < 2 {
		t.Fatalf("half of the requests have one key: %v", by)
	}
	only(send(1500), "m3", "m4")
	only(send(5000), "m5")

	r.kill(hot)
	if by := send(128); by[hot] > 0 {
		t.Errorf("%s is dead: %v", hot, by)
	}
	// The next longer stage serves for one that has lost both replicas.
	r.kill("m3")
	r.kill("m4")
	only(send(1500), "m5")
}

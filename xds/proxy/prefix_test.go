package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/policies/length"
)

// newPrefixFleet returns a fleet whose requests get prefix keys: three fronts in the first
// stage, two in the second.
func newPrefixFleet(t testing.TB) *fleet {
	t.Helper()
	f := newFleet(t, 5, nil)
	f.view.Settings.PrefixSecret = length.PrefixSecret{1, 2, 3}
	f.view.Models[0].PrefixDepth = 256
	f.inStages(3)
	return f
}

// inStages puts the first n fronts into the first stage, and the others into the second.
func (f *fleet) inStages(n int) {
	f.t.Helper()
	p := &f.view.Plans[0]
	p.Epoch++
	p.Stages = slices.Clone(p.Stages)
	p.Stages[0].Replicas, p.Stages[1].Replicas = nil, nil
	for i, e := range f.view.Endpoints {
		k := 0
		if i >= n {
			k = 1
		}
		p.Stages[k].Replicas = append(p.Stages[k].Replicas, e.ID)
	}
	f.publish(f.view, nil)
}

// conversation returns a request that begins as all requests of the same number do.
func conversation(i, more int) []byte {
	return fmt.Appendf(nil, `{"model":"m","cache_salt":"s","messages":[{"role":"user","content":"%s %s"}]}`,
		strings.Repeat(fmt.Sprintf("conversation %6d; ", i), 20), strings.Repeat("x", more))
}

// TestPrefixKeys checks that requests whose prompts begin alike go to one replica of their
// stage, others to any, and that the length still decides about the stage.
func TestPrefixKeys(t *testing.T) {
	f := newPrefixFleet(t)
	used := make(map[string]int)
	for i := range 40 {
		resp, first := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(i, 0)))
		used[first.By]++
		key := first.Header.Get(length.PrefixHeader)
		if len(key) != 16 || stageOf5(first.By) != 0 || resp.Header.Get(length.StageHeader) != "s0" {
			t.Fatalf("conversation %d: key %q, served by %s", i, key, first.By)
		}
		_, next := f.see("POST", "/v1/chat/completions", "", chunked{bytes.NewReader(conversation(i, 100))})
		if next.By != first.By || next.Header.Get(length.PrefixHeader) != key {
			t.Errorf("conversation %d: %s with key %s, then %s with key %s", i, first.By, key, next.By,
				next.Header.Get(length.PrefixHeader))
		}
		if _, long := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(i,
			5000))); stageOf5(long.By) != 1 {
			t.Errorf("conversation %d: a long request is served by %s", i, long.By)
		}
	}
	if len(used) != 3 {
		t.Errorf("40 conversations went to %v", used)
	}
	// Without a key the weighted cluster serves.
	used = make(map[string]int)
	for range 30 {
		_, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(prompt("m", 200)))
		used[s.By]++
		if s.Header[http.CanonicalHeaderKey(length.PrefixHeader)] != nil {
			t.Fatalf("a short prompt has key %q", s.Header.Get(length.PrefixHeader))
		}
	}
	if len(used) != 3 {
		t.Errorf("requests without a key went to %v", used)
	}
}

func stageOf5(by string) int {
	if by <= "r2" {
		return 0
	}
	return 1
}

// TestForgedPrefix checks that a client cannot choose its replica by the header.
func TestForgedPrefix(t *testing.T) {
	f := newPrefixFleet(t)
	_, want := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(1, 0)))
	key := want.Header.Get(length.PrefixHeader)
	used := make(map[string]int)
	for i := range 30 {
		forged := []string{length.PrefixHeader, fmt.Sprint(i), "X-CASCADE-PREFIX", key}
		_, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(1, 0)), forged...)
		if s.By != want.By || !slices.Equal(s.Header[http.CanonicalHeaderKey(length.PrefixHeader)], []string{key}) {
			t.Fatalf("with forged headers %s served with keys %q", s.By, s.Header.Values(length.PrefixHeader))
		}
		_, s = f.see("POST", "/v1/chat/completions", "", bytes.NewReader(prompt("m", 200)), forged...)
		used[s.By]++
		if got := s.Header.Values(length.PrefixHeader); len(got) != 0 {
			t.Fatalf("a request without a key arrives with %q", got)
		}
	}
	if len(used) != 3 {
		t.Errorf("forged keys without a prompt went to %v", used)
	}
}

// TestHotPrefix checks that no request fails when half of them have one key, and that a dead or
// refusing replica's keys are served by others.
func TestHotPrefix(t *testing.T) {
	f := newPrefixFleet(t)
	send := func(path string) map[string]int {
		var mu sync.Mutex
		by := make(map[string]int)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				r, err := http.NewRequest("POST", f.url+path, bytes.NewReader(conversation(i*(i%2), 0)))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := f.client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				mu.Lock()
				defer mu.Unlock()
				by[resp.Header.Get("X-By")]++
				if resp.StatusCode != 200 {
					t.Errorf("status %d of %s", resp.StatusCode, resp.Header.Get("X-By"))
				}
			})
		}
		wg.Wait()
		return by
	}
	_, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(0, 0)))
	if by := send("/v1/chat/completions"); by[s.By] < 50 || len(by) != 3 {
		t.Errorf("half of the requests belong to %s: %v", s.By, by)
	}
	if by := send("/refused-by-" + s.By); by[s.By] != 0 {
		t.Errorf("%s refuses all: %v", s.By, by)
	}
	f.fronts[s.By[1]-'0'].kill()
	if by := send("/v1/chat/completions"); by[s.By] != 0 {
		t.Errorf("%s is dead: %v", s.By, by)
	}
}

// TestPrefixesRehome counts the keys that a replica's move to the other stage, and a new
// boundary, give to other replicas: those of the replica that moves, and none.
func TestPrefixesRehome(t *testing.T) {
	f := newPrefixFleet(t)
	const n = 300
	homes := func() (out []string) {
		for i := range n {
			_, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(i, 0)))
			out = append(out, s.By)
		}
		return out
	}
	before := homes()
	f.inStages(2)
	for i, by := range homes() {
		if before[i] == "r2" && by == "r2" || before[i] != "r2" && by != before[i] {
			t.Errorf("conversation %d moved from %s to %s when r2 left", i, before[i], by)
		}
	}
	f.view.Plans[0].Stages[0].High, f.view.Plans[0].Stages[1].Low = 2000, 2000
	f.inStages(3)
	for i := range f.view.Endpoints {
		f.view.Endpoints[i].Weight = uint32(1 + 7*i)
	}
	f.inStages(3)
	if got := homes(); !slices.Equal(got, before) {
		t.Error("after its return, with another boundary and other weights, keys are not where they were")
	}
}

// TestNoMemoryForPrefix checks that a body that is read for its prefix key only is not refused
// for want of memory.
func TestNoMemoryForPrefix(t *testing.T) {
	f := newPrefixFleet(t)
	share := f.proxy.buffers.budget.Share()
	if !share.Resize(DefaultBodyMemory) {
		t.Fatal("the budget is in use")
	}
	defer share.Resize(0)
	_, s := f.see("POST", "/v1/chat/completions", "", bytes.NewReader(conversation(0, 10_000)))
	if s.Header.Get(length.PrefixHeader) != "" || s.Header.Get(length.TokensHeader) == "" || s.Bytes != len(conversation(0, 10_000)) {
		t.Errorf("without memory: %+v", s)
	}
	if resp, body := f.send("POST", "/v1/chat/completions", "", chunked{bytes.NewReader(conversation(0,
		10_000))}); resp.StatusCode != 503 {
		t.Errorf("of unknown size: status %d, %s", resp.StatusCode, body)
	}
}

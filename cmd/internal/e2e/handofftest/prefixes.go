package handofftest

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// otherHolds says that the other replica of a pair holds all of every prompt.
type otherHolds struct {
	pair **Pair
	own  policies.ReplicaID
}

// LongestPrefix implements frontend.PrefixHolders.
func (o otherHolds) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	p, i := *o.pair, 0
	if o.own == replica(0) {
		i = 1
	}
	return p.target(i), steps[len(steps)-1].Tokens
}

// PlayPrefixPulls has conversations whose second turn is sent to the other replica: its engine fetches the KV of the
// first turn before it begins, and answers as the first engine does. A prefix that the first engine does not have is
// computed.
func PlayPrefixPulls(t *testing.T, model string, engines [2]string, edit func(*frontend.Config)) {
	var p *Pair
	p = New(t, model, engines, func(c *frontend.Config) {
		if edit != nil {
			edit(c)
		}
		c.Overload.Off = true
		c.Cost = policies.Cost{D0: 1, D2: 0.1} // slow engines: a pull on a busy host has half a minute
		c.PrefixPull = &frontend.PrefixPull{Holders: otherHolds{&p, c.Replica}, TokenBytes: 1,
			Link: func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Gigabyte} }}
	})
	rng := rand.New(rand.NewPCG(8, 9))
	for i, n := range []int{530, 1100, 2100, 1536} {
		at := i % 2
		turn := make([]uint32, n)
		for k := range turn {
			turn[k] = 5 + rng.Uint32N(1000)
		}
		turn = append(turn, p.complete(p.Engines[at], turn)...) // its front end would pull
		for range 40 {
			turn = append(turn, 5+rng.Uint32N(1000))
		}
		before, pulls := p.Sources(1-at), p.Front[1-at].PrefixPulls()
		got := p.complete(p.clients[1-at], turn)
		held := (len(turn) / 512) * 512
		sources := testkit.WaitForValue(t, "the counters of the engine that fetches", func() Sources { return p.Sources(1 - at).Sub(before) },
			func(s Sources) bool { return s.Computed+s.Cached+s.Fetched >= float64(held+len(turn)) })
		if want := p.complete(p.Engines[at], turn); !slices.Equal(got, want) {
			t.Errorf("%d tokens: after a pull %v, without %v", len(turn), got, want)
		}
		now := p.Front[1-at].PrefixPulls()
		t.Logf("%d tokens, of which %d are held: %+v in %.3f s", len(turn), held, sources, now.Seconds-pulls.Seconds)
		if now.Pulled != pulls.Pulled+1 || now.Tokens != pulls.Tokens+uint64(held) || sources.Fetched < float64(held-1) || sources.Computed > float64(len(turn)-held+64) {
			t.Errorf("%d tokens, of which %d are held: %+v, pulls %+v\n%s", len(turn), held, sources, now, &p.Log)
		}
	}
}

// complete returns the token ids with which a prompt is completed.
func (p *Pair) complete(url string, prompt []uint32) (out []uint32) {
	p.t.Helper()
	body := testkit.Must(json.Marshal(map[string]any{"model": p.Model, "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": true, "return_token_ids": true}))
	resp, err := p.http.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	testkit.NoError(p.t, err)
	defer resp.Body.Close()
	answer := testkit.Must(io.ReadAll(resp.Body))
	for _, id := range gjson.GetBytes(answer, "choices.0.token_ids").Array() {
		out = append(out, uint32(id.Uint()))
	}
	if resp.StatusCode != http.StatusOK || len(out) != 20 {
		p.t.Fatalf("%s: %s\n%s", resp.Status, answer, &p.Log)
	}
	return out
}

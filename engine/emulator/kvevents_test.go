package emulator

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// eventListener accepts the connection of an engine that publishes events.
func eventListener(t *testing.T) (endpoint string, accept func() *testkit.ZMTPClient) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	return "tcp://" + l.Addr().String(), func() *testkit.ZMTPClient {
		c := testkit.NewZMTP(t, testkit.Must(l.Accept()), "SUB")
		c.Subscribe("kv")
		return c
	}
}

// describe returns the sequence number of a message and the kinds of its events in their order.
func describe(t *testing.T, m []string) string {
	t.Helper()
	if len(m) != 3 || m[0] != "kv@r0" {
		t.Fatalf("message %q", m)
	}
	var kinds []string
	for rest := m[2]; ; {
		_, after, ok := strings.Cut(rest, "\xa4type")
		if !ok {
			break
		}
		kinds = append(kinds, after[1:1+int(after[0]&31)])
		rest = after
	}
	return fmt.Sprint(binary.BigEndian.Uint64([]byte(m[1])), kinds)
}

func TestKVEvents(t *testing.T) {
	endpoint, accept := eventListener(t)
	config := Config{Speed: 1000, KVTokens: 128, Context: 128, Adapters: []string{"poet", "sql"}, KVEvents: &KVEvents{Enable: true, Endpoint: endpoint, ReplayEndpoint: "tcp://*:0", Topic: "kv@r0"}}
	e, stop := start(t, config)
	sub := accept()
	ask := func(first, n, output int, more string) {
		t.Helper()
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint(first + i)
		}
		complete(t, e, fmt.Sprintf(`{"prompt":[%s],"max_tokens":%d,"ignore_eos":true%s}`, strings.Join(ids, ","), output, more))
	}
	next := func(want string, with ...string) {
		t.Helper()
		m := sub.Receive()
		if got := describe(t, m); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		for _, text := range with {
			if !strings.Contains(m[2], text) {
				t.Errorf("%s: no %q in %q", want, text, m[2])
			}
		}
	}
	reset := func(query, want string) {
		t.Helper()
		if w := serveRequest(e, post("/reset_prefix_cache"+query, "")); w.Body.String() != want {
			t.Errorf("reset%s: %d %s", query, w.Code, w.Body)
		}
	}
	ask(300, 10, 1, "") // no full block
	ask(300, 40, 1, "")
	next("0 [BlockStored]", "\xb1parent_block_hash\xc0\xa9token_ids\xdc\x00\x20\xcd\x01\x2c\xcd\x01\x2d", "\xaablock_size\x10", "\xaaextra_keys\x92\xc0\xc0", "\xa6medium\xa3GPU")
	ask(300, 40, 1, "") // a hit
	ask(300, 40, 10, "")
	next("1 [BlockStored]", "\xb1parent_block_hash\xcf", "\xaaextra_keys\x91\xc0") // filled by decoding
	ask(300, 20, 1, `,"cache_salt":"tenant-a"`)
	next("2 [BlockStored]", "\xaaextra_keys\x91\x91\xa8tenant-a", "\xa7lora_id\xc0")
	ask(300, 20, 1, `,"model":"sql"`)
	next("3 [BlockStored]", "\xaaextra_keys\x91\x91\xa3sql", "\xa7lora_id\x02", "\xa9lora_name\xa3sql")
	ask(500, 90, 1, "") // 6 of 8 blocks
	next("4 [BlockRemoved BlockRemoved BlockRemoved BlockRemoved BlockStored]")

	reset("", `{"success":true}`)
	ask(300, 20, 1, "")
	next("5 [AllBlocksCleared BlockStored]")
	reset("?reset_running_requests=true", `{"success":true}`)
	ask(300, 20, 1, "")
	next("6 [AllBlocksCleared BlockStored]")
	if w := serveRequest(e, post("/reset_prefix_cache?reset_running_requests=x", "")); w.Code != http.StatusBadRequest {
		t.Errorf("a wrong query: %d %s", w.Code, w.Body)
	}

	sources := serveRequest(e, httptest.NewRequest("GET", "/kv_event_sources", nil)).Body.String()
	replay := gjson.Get(sources, "0.replay_endpoint").Str
	if gjson.Get(sources, "0.endpoint").Str != endpoint || gjson.Get(sources, "0.topic").Str != "kv@r0" || gjson.Get(sources, "0.buffer_steps").Int() != 10_000 {
		t.Errorf("sources %s", sources)
	}
	dealer := testkit.DialZMTP(t, strings.TrimPrefix(replay, "tcp://"), "DEALER")
	dealer.Send("", "\x00\x00\x00\x00\x00\x00\x00\x06")
	if got := describe(t, dealer.Receive()[1:]); got != "6 [AllBlocksCleared BlockStored]" {
		t.Errorf("replayed %s", got)
	}

	if w := serveRequest(e, post("/emulator/faults", `{"kv_events":{"garbage_every":1}}`)); w.Code != http.StatusOK {
		t.Fatal(w.Body)
	}
	ask(700, 20, 1, "")
	next("7 []", "\xc1")
	testkit.NoError(t, e.SetFaults(Faults{}))
	serveRequest(e, post("/emulator/restart-kv-events", ""))
	sub = accept()
	ask(800, 20, 1, "")
	next("0 [BlockStored]")

	stop()
	e, _ = start(t, config) // a new life
	sub = accept()
	ask(300, 20, 1, "")
	next("0 [BlockStored]")
}

// A request that runs holds its blocks: a reset without preemption fails, and one with it computes all of them again.
func TestResetWhileRunning(t *testing.T) {
	endpoint, accept := eventListener(t)
	e, stop := start(t, Config{KVEvents: &KVEvents{Enable: true, Endpoint: endpoint, Topic: "kv@r0"}})
	defer stop()
	sub := accept()
	done := make(chan struct{})
	r := post("/v1/completions", long)
	go func() {
		defer close(done)
		serveRequest(e, r.WithContext(t.Context()))
	}()
	if got := describe(t, sub.Receive()); got != "0 [BlockStored]" { // the request runs
		t.Errorf("%s", got)
	}
	for query, want := range map[string]bool{"": false, "?reset_running_requests=true": true} {
		if w := serveRequest(e, post("/reset_prefix_cache"+query, "")); w.Body.String() != fmt.Sprintf(`{"success":%v}`, want) {
			t.Errorf("reset%s: %s", query, w.Body)
		}
	}
	for n := 1; ; n++ {
		if got := describe(t, sub.Receive()); got != fmt.Sprint(n, " [BlockStored]") {
			if got != fmt.Sprint(n, " [AllBlocksCleared BlockStored]") {
				t.Errorf("%s", got)
			}
			break
		}
	}
	stop()
	<-done
}

// An engine without events has no sources, and nothing else changes.
func TestNoKVEvents(t *testing.T) {
	for _, c := range []*KVEvents{nil, {}, {Enable: true, Publisher: "null"}} {
		e := newEngine(t, Config{KVEvents: c})
		if body := serveRequest(e, httptest.NewRequest("GET", "/kv_event_sources", nil)).Body.String(); body != `{}` {
			t.Errorf("%+v: sources %s", c, body)
		}
		e.RestartKVEvents()
	}
	for text, want := range map[string]Config{
		"tcp://":     {KVEvents: &KVEvents{Enable: true, Endpoint: "ipc://x"}},
		"negative":   {Faults: Faults{KVEvents: KVEventFaults{DropEvery: -1}}},
		"at most":    {KVEvents: &KVEvents{Enable: true, HighWater: 1 << 30}},
		"publisher:": {KVEvents: &KVEvents{Enable: true, Publisher: "x"}},
	} {
		want.Model, want.Profile = "m", plainProfile()
		_, err := New(want)
		testkit.WantError(t, err, text)
	}
}

// A prefix that another process has brought is published as one that was computed, with the next step.
func TestKVEventsOfCommittedPrefix(t *testing.T) {
	endpoint, accept := eventListener(t)
	s := serve(t, Config{Speed: 20, Adapters: []string{"lora"}, KVEvents: &KVEvents{Enable: true, Endpoint: endpoint, Topic: "kv@r0"}})
	sub := accept()
	err := s.call(wire.Call{Op: wire.Pin, Reservation: "r", Model: "lora", CacheSalt: "tenant-a", IDs: make([]uint32, 40), Rest: true})
	testkit.NoError(t, err)
	testkit.NoError(t, s.call(wire.Call{Op: wire.Commit, Reservation: "r", Tokens: 32}))
	complete(t, s.Engine, `{"prompt":"a","max_tokens":1}`)
	if m := sub.Receive(); describe(t, m) != "0 [BlockStored]" || !strings.Contains(m[2], "\xaaextra_keys\x92\x92\xa4lora\xa8tenant-a\x91\xa4lora") {
		t.Errorf("%q", m)
	}
}

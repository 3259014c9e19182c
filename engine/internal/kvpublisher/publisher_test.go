package kvpublisher

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a publisher on in-memory connections.
type harness struct {
	*Publisher
	t           *testing.T
	faults      atomic.Pointer[Faults]
	pub, replay *testkit.PipeListener
}

func newHarness(t *testing.T, c Config) *harness {
	h := &harness{t: t, pub: testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1")), replay: testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:2"))}
	h.faults.Store(&Faults{})
	h.Publisher = testkit.Must(New(c, func() Faults { return *h.faults.Load() }))
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return h.Publisher.pub.Serve(ctx, h.pub) },
		func(ctx context.Context) error { return zmtp.ServeRouter(ctx, h.replay, h.Publisher.replay) },
		func(ctx context.Context) error { h.send(ctx); return nil },
	} {
		t.Cleanup(testkit.Run(t, run))
	}
	return h
}

func (h *harness) subscriber(topic string) *testkit.ZMTPClient {
	c := testkit.NewZMTP(h.t, testkit.Must(h.pub.Dial(h.t.Context())), "SUB")
	c.Subscribe(topic)
	return c
}

// publish publishes so many batches, with the payloads "0", "1" and so on.
func (h *harness) publish(n int) {
	for i := range n {
		h.Publish(h.t.Context(), fmt.Append(nil, i))
	}
}

// summarize returns "sequence number:payload" of a message, without what comes before.
func summarize(m []string) string {
	m = m[len(m)-2:]
	return fmt.Sprintf("%d:%.8s", int64(binary.BigEndian.Uint64([]byte(m[0]))), m[1])
}

// collect returns the messages that a client gets until nothing more comes.
func collect(c *testkit.ZMTPClient) []string {
	got := make(chan string, 1000)
	go func() {
		defer close(got)
		for {
			m, err := c.TryReceive()
			if err != nil {
				return
			}
			got <- summarize(m)
		}
	}()
	time.Sleep(time.Hour)
	c.Close()
	var all []string
	for m := range got {
		all = append(all, m)
	}
	return all
}

func (h *harness) ask(start string) []string {
	c := testkit.NewZMTP(h.t, testkit.Must(h.replay.Dial(h.t.Context())), "DEALER")
	c.Send("", start)
	return collect(c)
}

// Subscribers get batches with sequence numbers from 0 on, and may ask for those that they have missed.
func TestPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Config{Topic: "kv@r0", BufferSteps: 3})
		live := h.subscriber("kv@")
		h.publish(9)
		if m := live.Receive(); !slices.Equal(m, []string{"kv@r0", "\x00\x00\x00\x00\x00\x00\x00\x00", "0"}) {
			t.Errorf("first message: %q", m)
		}
		if got := collect(live); !slices.Equal(got, []string{"1:1", "2:2", "3:3", "4:4", "5:5", "6:6", "7:7", "8:8"}) {
			t.Errorf("live: %q", got)
		}
		for start, want := range map[string][]string{
			"\x00\x00\x00\x00\x00\x00\x00\x00": {"6:6", "7:7", "8:8", "-1:"},
			"\x00\x00\x00\x00\x00\x00\x00\x08": {"8:8", "-1:"},
			"\x00\x00\x00\x00\x00\x00\x10\x00": {"-1:"},
			"\x07":                             {"7:7", "8:8", "-1:"}, // vLLM reads a number of any length
			"more than eight bytes":            nil,
		} {
			if got := h.ask(start); !slices.Equal(got, want) {
				t.Errorf("replay from %q: %q, want %q", start, got, want)
			}
		}
		c := testkit.NewZMTP(t, testkit.Must(h.replay.Dial(t.Context())), "DEALER")
		c.Send("\x00\x00\x00\x00\x00\x00\x00\x08") // without the empty frame: ignored
		c.Send("", "\x00\x00\x00\x00\x00\x00\x00\x08")
		if m := c.Receive(); !slices.Equal(m, []string{"", "kv@r0", "\x00\x00\x00\x00\x00\x00\x00\x08", "8"}) {
			t.Errorf("replayed: %q", m)
		}
		if m := c.Receive(); !slices.Equal(m, []string{"", "", "\xff\xff\xff\xff\xff\xff\xff\xff", ""}) {
			t.Errorf("end of the replay: %q", m)
		}
	})
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		faults       Faults
		live, replay []string
	}{
		{Faults{}, []string{"0:0", "1:1", "2:2", "3:3"}, []string{"0:0", "1:1", "2:2", "3:3", "-1:"}},
		{Faults{DropEvery: 2}, []string{"0:0", "2:2"}, []string{"0:0", "1:1", "2:2", "3:3", "-1:"}},
		{Faults{DuplicateEvery: 3}, []string{"0:0", "1:1", "2:2", "2:2", "3:3"}, []string{"0:0", "1:1", "2:2", "3:3", "-1:"}},
		{Faults{GarbageEvery: 4}, []string{"0:0", "1:1", "2:2", "3:\xc1 is nev"}, []string{"0:0", "1:1", "2:2", "3:\xc1 is nev", "-1:"}},
		{Faults{ReplayBatches: 3}, []string{"0:0", "1:1", "2:2", "3:3"}, []string{"0:0", "1:1", "2:2"}},
		{Faults{ReplayBatches: 9}, []string{"0:0", "1:1", "2:2", "3:3"}, []string{"0:0", "1:1", "2:2", "3:3"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, Config{})
			h.faults.Store(&tc.faults)
			live := h.subscriber("")
			h.publish(4)
			if got := collect(live); !slices.Equal(got, tc.live) {
				t.Errorf("%+v: live %q, want %q", tc.faults, got, tc.live)
			}
			if got := h.ask("\x00\x00\x00\x00\x00\x00\x00\x00"); !slices.Equal(got, tc.replay) {
				t.Errorf("%+v: replay %q, want %q", tc.faults, got, tc.replay)
			}
		})
	}
	for _, f := range []Faults{{DropEvery: -1}, {PauseSeconds: -1}, {DelaySeconds: maxPause + 1}, {ReplayBatches: -1}} {
		if f.Validate() == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
}

// A delay makes all batches later and a pause each of them; an engine waits when the queue is full.
func TestSlowPublisher(t *testing.T) {
	for _, tc := range []struct {
		faults  Faults
		batches int
		want    time.Duration // until the last batch came
	}{
		{Faults{DelaySeconds: 2}, 4, 2 * time.Second},
		{Faults{PauseSeconds: 3}, 3, 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, Config{MaxQueue: 8})
			h.faults.Store(&tc.faults)
			live := h.subscriber("")
			began := time.Now()
			h.publish(tc.batches)
			if d := time.Since(began); d > 0 {
				t.Errorf("%+v: publishing took %v", tc.faults, d)
			}
			for range tc.batches {
				live.Receive()
			}
			if d := time.Since(began); d != tc.want {
				t.Errorf("%+v: the last batch came after %v, want %v", tc.faults, d, tc.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Config{MaxQueue: 2})
		h.faults.Store(&Faults{PauseSeconds: 1})
		began := time.Now()
		h.publish(5) // one is sent, two are queued
		if d := time.Since(began); d < time.Second {
			t.Errorf("publishing into a full queue took %v", d)
		}
	})
}

// After a restart the numbers begin at 0 again, on new connections, and what was before is gone.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Config{})
		live := h.subscriber("")
		h.publish(3)
		for range 3 {
			live.Receive()
		}
		h.Restart()
		if _, err := live.TryReceive(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection: %v", err)
		}
		synctest.Wait()
		live = h.subscriber("")
		h.publish(1)
		if got := collect(live); !slices.Equal(got, []string{"0:0"}) {
			t.Errorf("live: %q", got)
		}
		if got := h.ask("\x00"); !slices.Equal(got, []string{"0:0", "-1:"}) {
			t.Errorf("replay: %q", got)
		}
	})
}

// Run listens where the config says, on loopback, or connects to a subscriber that listens.
func TestRun(t *testing.T) {
	run := func(c Config) *Publisher {
		p := testkit.Must(New(c, func() Faults { return Faults{} }))
		t.Cleanup(testkit.Run(t, p.Run))
		return p
	}
	p := run(Config{Endpoint: "tcp://*:0", ReplayEndpoint: "tcp://*:0", Topic: "kv"})
	bound := testkit.WaitForValue(t, "both sockets listen", p.Config, func(c Config) bool {
		return c.Endpoint != "tcp://*:0" && c.ReplayEndpoint != "tcp://*:0"
	})
	if !strings.HasPrefix(bound.Endpoint, "tcp://127.0.0.1:") || !strings.HasPrefix(bound.ReplayEndpoint, "tcp://127.0.0.1:") || bound.Topic != "kv" {
		t.Errorf("%+v", bound)
	}
	sub := testkit.DialZMTP(t, strings.TrimPrefix(bound.Endpoint, "tcp://"), "SUB")
	sub.Subscribe("kv")
	p.Publish(t.Context(), []byte("x"))
	if got := summarize(sub.Receive()); got != "0:x" {
		t.Errorf("live: %q", got)
	}
	replay := testkit.DialZMTP(t, strings.TrimPrefix(bound.ReplayEndpoint, "tcp://"), "DEALER")
	replay.Send("", "")
	if got := summarize(replay.Receive()); got != "0:x" {
		t.Errorf("replay: %q", got)
	}

	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	out := run(Config{Endpoint: "tcp://" + l.Addr().String()})
	sub = testkit.NewZMTP(t, testkit.Must(l.Accept()), "SUB")
	sub.Subscribe("")
	out.Publish(t.Context(), []byte("y"))
	if got := summarize(sub.Receive()); got != "0:y" {
		t.Errorf("of a publisher that connects: %q", got)
	}

	taken := testkit.Must(New(Config{}.atStar(bound.Endpoint), func() Faults { return Faults{} }))
	testkit.WantError(t, taken.Run(t.Context()), "address already in use")
	taken = testkit.Must(New(Config{Endpoint: "tcp://*:0", ReplayEndpoint: bound.Endpoint}, func() Faults { return Faults{} }))
	testkit.WantError(t, taken.Run(t.Context()), "address already in use")
}

// atStar returns the config with the port of an endpoint at "*".
func (c Config) atStar(endpoint string) Config {
	c.Endpoint = "tcp://*" + endpoint[strings.LastIndex(endpoint, ":"):]
	return c
}

func TestParseConfig(t *testing.T) {
	got, err := ParseConfig(`{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:25557","replay_endpoint":null,"topic":"kv"}`)
	testkit.NoError(t, err)
	if want := (Config{Enable: true, Publisher: "zmq", Endpoint: "tcp://127.0.0.1:25557", BufferSteps: 10_000, HighWater: 100_000, MaxQueue: 100_000, Topic: "kv"}); got != want || !got.Enabled() {
		t.Errorf("%+v, want %+v", got, want)
	}
	for text, want := range map[string]bool{`{}`: false, `{"enable_kv_cache_events":true}`: true, `{"enable_kv_cache_events":true,"publisher":"null"}`: false} {
		c, err := ParseConfig(text)
		testkit.NoError(t, err)
		if c.Enabled() != want || c.Endpoint != "tcp://*:5557" {
			t.Errorf("%s: %+v", text, c)
		}
	}
	for text, want := range map[string]string{
		``:                             "EOF",
		`{} {}`:                        "data after",
		`[]`:                           "cannot unmarshal",
		`{"port":1}`:                   `unknown field "port"`,
		`{"publisher":"kafka"}`:        "must be zmq or null",
		`{"buffer_steps":0}`:           "must be positive",
		`{"hwm":-1}`:                   "must be positive",
		`{"max_queue_size":1e9}`:       "cannot unmarshal",
		`{"max_queue_size":100000000}`: "at most",
		`{"endpoint":"ipc:///tmp/x"}`:  "must begin with tcp://",
		`{"endpoint":"tcp://*"}`:       "missing port",
		`{"endpoint":"tcp://*:99999"}`: "below 65536",
		`{"endpoint":"tcp://:1"}`:      "names no host",
		`{"replay_endpoint":"x"}`:      "replay_endpoint",
		`{"topic":"` + strings.Repeat("x", 256) + `"}`: "topic",
	} {
		if _, err := ParseConfig(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
	for endpoint, want := range map[string]string{
		"tcp://*:5557":          "listen 127.0.0.1:5557",
		"tcp://[::]:5557":       "listen [::1]:5557",
		"tcp://[::1]:5557":      "listen [::1]:5557",
		"tcp://127.0.0.1:5557":  "connect 127.0.0.1:5557",
		"tcp://0.0.0.0:5557":    "connect 0.0.0.0:5557",
		"tcp://engine.lan:5557": "connect engine.lan:5557",
	} {
		how := "connect "
		if listens(endpoint) {
			how = "listen "
		}
		if got := how + testkit.Must(address(endpoint)); got != want {
			t.Errorf("%s: %s, want %s", endpoint, got, want)
		}
	}
}

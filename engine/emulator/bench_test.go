package emulator

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// BenchmarkLoop256 measures the loop's own cost per token with 256 running sequences: schedule, KV
// bytes, next token, counters, delivery to the handlers' queues. It excludes HTTP.
func BenchmarkLoop256(b *testing.B) {
	e := newEngine(b, Config{KVTokens: 1 << 21, Context: 1 << 21})
	pool, err := kv.NewPool(e.cfg.layout())
	testkit.NoError(b, err)
	defer pool.Close()
	s, err := batch.New(batch.Config{Model: e.model, Pool: pool, Profile: e.profile, MaxBatch: 256, MaxTokens: 8192})
	testkit.NoError(b, err)
	streams := make([]*stream, 256)
	for i := range streams {
		streams[i] = &stream{engine: e, faults: new(Faults), ready: make(chan struct{}, 1)}
		prompt := make([]model.Token, 1000)
		for j := range prompt {
			prompt[j] = model.Token(i*7 + j)
		}
		streams[i].sequence = batch.NewSequence(batch.Request{Prompt: prompt, MaxOutput: 1 << 20, IgnoreEOS: true, Receiver: streams[i]}, e.cfg.BlockTokens)
		s.Add(streams[i].sequence)
	}
	taken := make([][]model.Token, len(streams))
	tokens := 0
	iterate := func() {
		step := s.Step()
		e.publish(s)
		e.now = e.now.Add(time.Millisecond)
		for _, event := range step.Events {
			event.Sequence.Receiver.Receive(event)
		}
		tokens += len(step.Events)
		// In a long run sequences outgrow the pool and are preempted: only those with a new token
		// have an event to receive.
		for i, event := range step.Events {
			st := event.Sequence.Receiver.(*stream)
			<-st.ready
			taken[i], _, _ = st.take(taken[i])
		}
	}
	for full := false; !full; { // until all prompts are prefilled
		step := s.Step()
		full = len(step.Events) == len(streams)
		for _, event := range step.Events {
			st := event.Sequence.Receiver.(*stream)
			st.Receive(event)
			<-st.ready
		}
	}
	b.ReportAllocs()
	tokens = 0
	for b.Loop() {
		iterate()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
}

// BenchmarkHTTP64 measures everything, including the client, over loopback: 64 streams of 200
// tokens as fast as the machine allows.
func BenchmarkHTTP64(b *testing.B) {
	e, stop := start(b, Config{Speed: maxSpeed, MaxBatch: 64, KVTokens: 1 << 16})
	defer stop()
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	tokens := 0
	for b.Loop() {
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				res, err := client.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a b c","max_tokens":200,"ignore_eos":true,"stream":true}`))
				if err != nil {
					b.Error(err)
					return
				}
				defer res.Body.Close()
				for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				}
			})
		}
		all.Wait()
		tokens += 64 * 200
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
}

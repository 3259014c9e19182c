// Package replay sends a trace to an OpenAI endpoint and measures what its clients would see.
//
// It is an open-loop client: a request is sent at its time, whatever is outstanding, and its
// latency counts from that time, so that a slow server (or a slow client) cannot hide by delaying
// the next request. It generates no trace and draws no picture. A run whose machine had too little
// idle CPU measures the machine and is marked void.
package replay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/engine/trace"
)

// Defaults and limits of a replay.
const (
	DefaultTimeout     = 10 * time.Minute
	DefaultConnections = 8192

	// minIdle is the share of idle CPU below which a run is void.
	minIdle = 0.3

	progressEvery = time.Second
	dialTimeout   = 10 * time.Second
	// maxEvent bounds one server-sent event, maxErrorBody the part of an error response that is
	// read.
	maxEvent     = 1 << 20
	maxErrorBody = 4 << 10
	// writeBuffer sends long prompts in few system calls.
	writeBuffer = 64 << 10
)

// Prompt is the form of prompts.
type Prompt string

// The kinds of prompts.
const (
	PromptText Prompt = "text" // words that common tokenisers count as one token each
	PromptIDs  Prompt = "ids"  // token ids; exact with every tokeniser
)

// Config configures a Replay. Target, Model and Requests are required.
type Config struct {
	Name   string // of the run, in results and plots; empty means Target
	Target string // base URL without /v1, such as http://127.0.0.1:8080
	Model  string
	// Host replaces the Host header, for servers with virtual hosts. Empty keeps Target's.
	Host string
	// Header is added to every request.
	Header http.Header
	// Requests is a trace with arrival times, in order of arrival.
	Requests []trace.Request
	// Prompt is PromptText (the default) or PromptIDs. Equal prefix ids of the
	// trace become equal blocks of 512 tokens in both.
	Prompt Prompt
	// Speed is the factor by which the target's engines run faster than real time: arrivals are
	// divided by it, and results are reported as measured and multiplied by it ("engine
	// time"). 0 means 1.
	Speed float64
	// SLO is the objective of which the result has the attainment, in engine time; the zero SLO for
	// none.
	SLO SLO
	// Timeout bounds one request in wall time, from its arrival; 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// Connections is the maximum number of open connections; further requests wait for one, and
	// the wait counts. 0 means DefaultConnections.
	Connections int
	// HTTP2 uses HTTP/2 with prior knowledge (h2c) instead of HTTP/1.1.
	HTTP2 bool
	// CPU reads the machine's CPU times; nil reads /proc/stat, if it exists.
	CPU func() (CPUTimes, error)
	// BesideNiced counts the time of niced processes as idle: work of the lowest priority runs beside on
	// purpose. It must not be set if what is measured is niced itself.
	BesideNiced bool
	// Records receives one JSON line per request when the run ends; nil for
	// none.
	Records io.Writer
	// Progress is called once a second and at the end, from one goroutine at a
	// time; nil for none.
	Progress func(Progress)
	// Transport sends the requests; nil creates one from Connections and HTTP2.
	Transport http.RoundTripper
}

// Progress is the state of a run.
type Progress struct {
	Total, Sent, Done, Failed int // requests; Done includes Failed
	Elapsed                   time.Duration
	Remaining                 time.Duration // until the last arrival
	IdleCPU                   float64       // share of idle CPU so far; −1 if the system does not report it
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, c.Target)
	c.Prompt = cmp.Or(c.Prompt, PromptText)
	c.Speed = cmp.Or(c.Speed, 1)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Connections = cmp.Or(c.Connections, DefaultConnections)
	if c.CPU == nil {
		c.CPU = procStat
	}
	return c
}

// validate checks a Config after its defaults are filled in.
func (c Config) validate() error {
	target, err := url.Parse(c.Target)
	switch {
	case err != nil:
		return fmt.Errorf("replay: target: %w", err)
	case target.Scheme != "http" && target.Scheme != "https" || target.Host == "":
		return fmt.Errorf("replay: target %q must be a URL such as http://127.0.0.1:8080", c.Target)
	case c.Model == "":
		return errors.New("replay: Model is required: the model to ask for")
	case len(c.Requests) == 0:
		return fmt.Errorf("replay: %w", trace.ErrEmpty)
	case c.Prompt != PromptText && c.Prompt != PromptIDs:
		return fmt.Errorf("replay: prompt is %q; it must be %q or %q", c.Prompt, PromptText, PromptIDs)
	case !(c.Speed > 0) || math.IsInf(c.Speed, 0):
		return fmt.Errorf("replay: speed is %v; it must be positive", c.Speed)
	case c.SLO != (SLO{}) && !(c.SLO.TTFT > 0 && c.SLO.TPOT > 0):
		return fmt.Errorf("replay: SLO of %v s to the first token and %v s between tokens: both must be positive", c.SLO.TTFT, c.SLO.TPOT)
	case c.Timeout < 0 || c.Connections < 0:
		return fmt.Errorf("replay: timeout %v and connections %d must not be negative", c.Timeout, c.Connections)
	}
	for i, r := range c.Requests {
		if r.At < 0 {
			return fmt.Errorf("replay: request %d has no arrival time; shape the trace with a rate first", i)
		}
		if i > 0 && r.At < c.Requests[i-1].At {
			return fmt.Errorf("replay: request %d arrives before the one before it; sort the trace", i)
		}
	}
	return nil
}

// Replay is one run. It is used once.
type Replay struct {
	cfg    Config
	client *http.Client
	url    string
	words  *words
	model  []byte // as JSON

	// started is set before the first request is sent; each goroutine writes its own record.
	started time.Time
	records []Record

	sent, done, failed atomic.Int64
}

// New validates the Config and starts nothing.
func New(cfg Config) (*Replay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	path, err := url.JoinPath(cfg.Target, "v1", "completions")
	if err != nil {
		return nil, fmt.Errorf("replay: target: %w", err)
	}
	model, err := json.Marshal(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("replay: model: %w", err)
	}
	r := &Replay{cfg: cfg, url: path, words: newWords(), model: model, records: make([]Record, len(cfg.Requests))}
	carrier := cfg.Transport
	if carrier == nil {
		carrier = transport(cfg)
	}
	r.client = &http.Client{Transport: carrier}
	return r, nil
}

// transport returns a connection pool of the size and protocol that cfg asks for.
func transport(cfg Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!cfg.HTTP2)
	protocols.SetUnencryptedHTTP2(cfg.HTTP2)
	protocols.SetHTTP2(cfg.HTTP2)
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		Protocols:           protocols,
		MaxConnsPerHost:     cfg.Connections,
		MaxIdleConns:        cfg.Connections,
		MaxIdleConnsPerHost: cfg.Connections,
		DisableCompression:  true,
		WriteBufferSize:     writeBuffer,
	}
}

// readCPU reads the CPU times by which a run is judged.
func (r *Replay) readCPU() (CPUTimes, error) {
	t, err := r.cfg.CPU()
	if r.cfg.BesideNiced {
		t.Idle += t.Niced
	}
	return t, err
}

// Run sends the trace and waits for all answers. When ctx ends, it sends no more, cancels what is
// outstanding and returns the Result so far with the context's cause. Any other error means that
// the records could not be written; the Result is complete. It may be called once.
func (r *Replay) Run(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := newIdleMeter(r.readCPU)
	r.started = time.Now()
	watched := make(chan struct{})
	watch, stop := context.WithCancel(context.Background())
	go func() {
		defer close(watched)
		r.watch(watch, idle)
	}()
	var requests sync.WaitGroup
	for i := range r.cfg.Requests {
		if !sleepUntil(ctx, r.due(i)) {
			break
		}
		r.sent.Add(1)
		requests.Go(func() {
			r.records[i] = r.send(ctx, i)
			if r.records[i].Error != "" {
				r.failed.Add(1)
			}
			r.done.Add(1)
		})
	}
	requests.Wait()
	wall := time.Since(r.started)
	stop()
	<-watched
	r.client.CloseIdleConnections()

	result := summarise(r.cfg, r.records[:r.sent.Load()], wall)
	result.IdleCPU, result.IdleCPUWorst = idle.share(), idle.worst
	result.Interrupted = ctx.Err() != nil
	if result.IdleCPU >= 0 && result.IdleCPU < minIdle {
		result.Void = fmt.Sprintf("%.0f %% of the CPU was idle, at least %.0f %% is needed: lower the rate or the speed", 100*result.IdleCPU, 100*minIdle)
	}
	if err := writeRecords(r.cfg.Records, result.Records); err != nil {
		return result, err
	}
	return result, context.Cause(ctx)
}

// due returns when request i is to be sent.
func (r *Replay) due(i int) time.Time {
	return r.started.Add(time.Duration(float64(r.cfg.Requests[i].At) / r.cfg.Speed))
}

// sleepUntil waits until t and returns false if ctx ends before.
func sleepUntil(ctx context.Context, t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// watch reports progress and reads the CPU times until the run ends.
func (r *Replay) watch(ctx context.Context, idle *idleMeter) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			idle.finish()
			r.progress(idle.share())
			return
		case <-tick.C:
			idle.sample()
			r.progress(idle.share())
		}
	}
}

func (r *Replay) progress(idle float64) {
	if r.cfg.Progress == nil {
		return
	}
	r.cfg.Progress(Progress{
		Total:     len(r.records),
		Sent:      int(r.sent.Load()),
		Done:      int(r.done.Load()),
		Failed:    int(r.failed.Load()),
		Elapsed:   time.Since(r.started),
		Remaining: max(0, time.Until(r.due(len(r.records)-1))),
		IdleCPU:   idle,
	})
}

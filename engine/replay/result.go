package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Result is the result of a run. Failed requests count in Failures and in no latency.
type Result struct {
	Name        string  `json:"name"`
	Target      string  `json:"target"`
	Model       string  `json:"model"`
	Speed       float64 `json:"speed"`
	Requests    int     `json:"requests"`  // of the trace
	Sent        int     `json:"sent"`      // fewer when interrupted
	Completed   int     `json:"completed"` // answered to the end
	Interrupted bool    `json:"interrupted,omitempty"`
	Truncated   int     `json:"truncated"` // completed with fewer tokens than asked
	// Failures lists the kinds of failures, most frequent first.
	Failures []Failure `json:"failures,omitempty"`
	Wall     Metrics   `json:"wall"`   // as measured
	Engine   Metrics   `json:"engine"` // times multiplied, rates divided by Speed
	// Stages counts requests by stage, from the response headers; empty if the target sends none.
	Stages []StageShare `json:"stages,omitempty"`
	// Reuse is set if prompts of the trace share prefixes, Attainment if the run has an SLO.
	Reuse      *Reuse      `json:"reuse,omitempty"`
	Attainment *Attainment `json:"attainment,omitempty"`
	// IdleCPU is the share of idle CPU during the run, IdleCPUWorst that of its worst second; −1 if
	// the system does not report it.
	IdleCPU      float64 `json:"idle_cpu"`
	IdleCPUWorst float64 `json:"idle_cpu_worst"`
	// Void is why the run is no valid measurement; empty if it is one.
	Void string `json:"void,omitempty"`
	// Records holds every request, in the order sent. It is not part of the JSON: Config.Records
	// receives it.
	Records []Record `json:"-"`
}

// Failed returns the number of requests that failed.
func (r Result) Failed() int {
	n := 0
	for _, f := range r.Failures {
		n += f.Count
	}
	return n
}

// Failure counts the requests that failed in one way.
type Failure struct {
	Kind  Kind   `json:"kind"`
	Count int    `json:"count"`
	First string `json:"first"` // the message of the first one, and how long its connection had waited
}

// StageShare counts the requests that one stage served.
type StageShare struct {
	Stage    string `json:"stage"`
	Requests int    `json:"requests"`
	// Min and Max bound the prompts, in tokens as the server counted them, or as in the trace if it
	// did not.
	Min policies.Tokens `json:"min"`
	Max policies.Tokens `json:"max"`
}

// Metrics are the figures of a run in one time base. Times are in seconds.
type Metrics struct {
	Seconds float64 `json:"seconds"` // from the start to the last end
	// MostSeconds is the time in which 99 % of the requests ended. The rates are those of this
	// time: the last answer, which is one long one, says nothing of how many requests per second a
	// system serves.
	MostSeconds       float64 `json:"most_seconds"`
	RequestsPerSecond float64 `json:"requests_per_second"` // completed
	TokensPerSecond   float64 `json:"tokens_per_second"`   // generated
	InputPerSecond    float64 `json:"input_per_second"`    // prompt tokens
	Latency
	Lag Summary `json:"lag"` // how late the client sent
	// Deciles divides the requests by the length of their prompts,
	// Classes by fixed bounds.
	Deciles  []Group  `json:"deciles"`
	Classes  []Group  `json:"classes"`
	Timeline []Moment `json:"timeline"`
}

// Latency is the latencies of some requests, in seconds.
type Latency struct {
	TTFT Summary `json:"ttft"` // due time to first token
	TPOT Summary `json:"tpot"` // between tokens, a mean per request
	// Normalised is the end-to-end latency over the tokens received.
	Normalised Summary `json:"normalised"`
	E2E        Summary `json:"e2e"` // due time to the end of the response
}

// Summary describes a sample. All figures are 0 for an empty one. Percentiles are nearest-rank, and within Error.
type Summary struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	// Percentiles are the 0th to the 100th, for plots; nil in groups.
	Percentiles []float64 `json:"percentiles,omitempty"`
}

// Group is the requests of a range of prompt lengths.
type Group struct {
	Low      policies.Tokens `json:"low"`
	High     policies.Tokens `json:"high"` // exclusive; Unbounded for the last class
	Requests int             `json:"requests"`
	Failed   int             `json:"failed"`
	Latency
}

// Moment is one of the equal parts of a run.
type Moment struct {
	At          float64 `json:"at"`          // its middle
	Arrivals    float64 `json:"arrivals"`    // requests/s due
	Tokens      float64 `json:"tokens"`      // tokens/s received
	Outstanding float64 `json:"outstanding"` // requests due and not ended, at At
	TTFT        float64 `json:"ttft"`        // mean of the requests due in it; 0 for none
}

// classes are the bounds of the length classes of a result.
var classes = [...]policies.Tokens{0, 1 << 10, 4 << 10, 16 << 10, 64 << 10, policies.Unbounded}

// ClassBounds returns the bounds of the length classes of a result: class i has the prompts from bound i
// up to bound i+1, exclusively.
func ClassBounds() []policies.Tokens { return classes[:] }

// moments is the number of parts of a timeline.
const moments = 60

func summarise(cfg Config, records []Record, wall time.Duration) Result {
	r := Result{
		Name: cfg.Name, Target: cfg.Target, Model: cfg.Model, Speed: cfg.Speed,
		Requests: len(cfg.Requests), Sent: len(records), Records: records,
	}
	failures := make(map[Kind]*Failure)
	for _, record := range records {
		if record.Error == "" {
			r.Completed++
			if record.Truncated() {
				r.Truncated++
			}
			continue
		}
		f := failures[record.Error]
		if f == nil {
			f = &Failure{Kind: record.Error, First: record.Message}
			if record.Waited > 0 && record.Tokens == 0 {
				f.First += fmt.Sprintf(" (its connection had waited for %.3g s)", record.Waited)
			}
			failures[record.Error] = f
		}
		f.Count++
	}
	for _, f := range failures {
		r.Failures = append(r.Failures, *f)
	}
	slices.SortFunc(r.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	r.Stages = stages(records)
	var reuse Reuse
	attained := Attainment{SLO: cfg.SLO}
	for i := range records {
		reuse.AddRequest(cfg.Requests[i])
		reuse.AddAnswer(&records[i])
		attained.Add(&records[i], cfg.Speed)
	}
	if reuse.Finish() {
		r.Reuse = &reuse
	}
	if cfg.SLO != (SLO{}) {
		r.Attainment = &attained
	}
	r.Wall = measure(records, wall.Seconds(), 1)
	r.Engine = measure(records, wall.Seconds(), cfg.Speed)
	return r
}

// measure computes the figures in a time base that is speed times as fast as wall time. An answer's tokens are spread
// evenly between its first and last.
func measure(records []Record, seconds, speed float64) Metrics {
	var c Collector
	var lag histogram
	for _, r := range records {
		for _, t := range [...]*float64{&r.Due, &r.Lag, &r.TTFT, &r.Last, &r.E2E} {
			*t *= speed
		}
		c.AddArrival(durationOf(r.Due))
		for i := range r.Tokens {
			c.AddTokens(durationOf(r.Due+r.TTFT+(r.Last-r.TTFT)*float64(i)/float64(max(r.Tokens-1, 1))), 1)
		}
		c.AddEnd(&r)
		lag.add(r.Lag)
	}
	m := c.metrics(seconds * speed)
	m.Lag = summariseHistograms([]*histogram{&lag})
	return m
}

// stages counts requests by the stage in the response's header.
func stages(records []Record) []StageShare {
	var shares []StageShare
	index := make(map[string]int)
	for _, r := range records {
		if r.Stage == "" {
			continue
		}
		length := r.Input
		if r.Prompt > 0 {
			length = policies.Tokens(r.Prompt)
		}
		i, ok := index[r.Stage]
		if !ok {
			i = len(shares)
			index[r.Stage] = i
			shares = append(shares, StageShare{Stage: r.Stage, Min: length, Max: length})
		}
		s := &shares[i]
		s.Requests++
		s.Min, s.Max = min(s.Min, length), max(s.Max, length)
	}
	slices.SortFunc(shares, func(a, b StageShare) int { return cmp.Compare(a.Stage, b.Stage) })
	return shares
}

// writeRecords writes one JSON object per line.
func writeRecords(w io.Writer, records []Record) error {
	if w == nil {
		return nil
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	for i := range records {
		if err := encoder.Encode(&records[i]); err != nil {
			return fmt.Errorf("write the records: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the records: %w", err)
	}
	return nil
}

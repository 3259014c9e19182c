package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

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
	// Deciles divides the completed requests by the length of their prompts,
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

// Summary describes a sample. All figures are 0 for an empty one.
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

// measure computes the figures in a time base that is speed times as fast as wall time.
func measure(records []Record, seconds, speed float64) Metrics {
	m := Metrics{Seconds: seconds * speed}
	var completed []Record
	var lag, ends []float64
	for _, r := range records {
		lag, ends = append(lag, r.Lag*speed), append(ends, r.Due+r.E2E)
		if r.Error == "" {
			completed = append(completed, r)
		}
	}
	if len(ends) > 0 {
		slices.Sort(ends)
		m.rate(completed, stat.Quantile(0.99, stat.Empirical, ends, nil), speed)
	}
	m.Lag = summary(lag)
	m.Latency = latency(completed, speed)
	m.Deciles = deciles(records, speed)
	for i, high := range classes[1:] {
		m.Classes = append(m.Classes, group(records, classes[i], high, speed))
	}
	m.Timeline = timeline(records, seconds, speed)
	return m
}

// rate sets the rates of the time until end, in wall time.
func (m *Metrics) rate(completed []Record, end, speed float64) {
	m.MostSeconds = end * speed
	if !(m.MostSeconds > 0) {
		return
	}
	for _, r := range completed {
		if r.Due+r.E2E <= end {
			m.RequestsPerSecond += 1 / m.MostSeconds
			m.TokensPerSecond += float64(r.Tokens) / m.MostSeconds
			m.InputPerSecond += float64(r.Input) / m.MostSeconds
		}
	}
}

// latency summarises completed requests.
func latency(completed []Record, speed float64) Latency {
	var ttft, tpot, normalised, e2e []float64
	for _, r := range completed {
		ttft = append(ttft, r.TTFT*speed)
		e2e = append(e2e, r.E2E*speed)
		if r.Tokens > 0 {
			normalised = append(normalised, r.E2E*speed/float64(r.Tokens))
		}
		if t, ok := r.TPOT(); ok {
			tpot = append(tpot, t*speed)
		}
	}
	return Latency{TTFT: summary(ttft), TPOT: summary(tpot), Normalised: summary(normalised), E2E: summary(e2e)}
}

// summary sorts the values in place. Percentiles are nearest-rank.
func summary(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	slices.Sort(values)
	at := func(p float64) float64 { return stat.Quantile(p, stat.Empirical, values, nil) }
	s := Summary{
		Count: len(values), Mean: stat.Mean(values, nil),
		P50: at(0.5), P95: at(0.95), P99: at(0.99), Max: values[len(values)-1],
		Percentiles: make([]float64, 101),
	}
	for i := range s.Percentiles {
		s.Percentiles[i] = at(float64(i) / 100)
	}
	return s
}

// group summarises the requests whose prompt is in [low, high).
func group(records []Record, low, high policies.Tokens, speed float64) Group {
	g := Group{Low: low, High: high}
	var completed []Record
	for _, r := range records {
		if r.Input < low || r.Input >= high {
			continue
		}
		g.Requests++
		if r.Error != "" {
			g.Failed++
			continue
		}
		completed = append(completed, r)
	}
	g.Latency = latency(completed, speed)
	return withoutPercentiles(g)
}

// deciles divides the requests by prompt length into ten groups that are as
// equal as equal lengths allow: one length is in one group only, so there may
// be fewer.
func deciles(records []Record, speed float64) []Group {
	if len(records) == 0 {
		return nil
	}
	lengths := make([]policies.Tokens, len(records))
	for i, r := range records {
		lengths[i] = r.Input
	}
	slices.Sort(lengths)
	var cuts []policies.Tokens
	for d := range 10 {
		cuts = append(cuts, lengths[d*len(lengths)/10])
	}
	cuts = slices.Compact(append(cuts, lengths[len(lengths)-1]+1))
	var groups []Group
	for i := 1; i < len(cuts); i++ {
		groups = append(groups, group(records, cuts[i-1], cuts[i], speed))
	}
	return groups
}

// timeline spreads each answer's tokens evenly between its first and last.
func timeline(records []Record, seconds, speed float64) []Moment {
	if !(seconds > 0) {
		return nil
	}
	width := seconds / moments
	line := make([]Moment, moments)
	first := make([]int, moments)
	for i := range line {
		line[i].At = (float64(i) + 0.5) * width
	}
	slot := func(t float64) int { return min(max(0, int(t/width)), moments-1) }
	for _, r := range records {
		due := slot(r.Due)
		line[due].Arrivals++
		for i := due; i <= slot(r.Due+r.E2E); i++ {
			if at := line[i].At; at >= r.Due && at < r.Due+r.E2E {
				line[i].Outstanding++
			}
		}
		if r.Tokens == 0 {
			continue
		}
		line[due].TTFT += r.TTFT
		first[due]++
		from, to := r.Due+r.TTFT, r.Due+r.Last
		a, b := slot(from), slot(to)
		for i := a; i <= b; i++ {
			share := 1.0
			if a < b {
				low, high := math.Max(from, float64(i)*width), math.Min(to, float64(i+1)*width)
				share = (high - low) / (to - from)
			}
			line[i].Tokens += share * float64(r.Tokens)
		}
	}
	for i := range line {
		m := &line[i]
		m.At *= speed
		m.Arrivals /= width * speed
		m.Tokens /= width * speed
		if first[i] > 0 {
			m.TTFT *= speed / float64(first[i])
		}
	}
	return line
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

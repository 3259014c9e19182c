package evaluation

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// Run is one simulation. Its fields name inputs of the Evaluation.
type Run struct {
	Workload  string `json:"workload"`
	Engine    string `json:"engine"`
	Attention string `json:"attention"`
	Policy    string `json:"policy"`
	Layout    string `json:"layout,omitempty"` // one of the layouts; empty: the policy's
	Replicas  int    `json:"replicas"`
	// Load is the rate of arrivals as a share of the fleet's capacity, by the linear cost model.
	Load float64 `json:"load"`
	// Seconds is how long requests arrive; those of the first part, Warm, are not measured.
	Seconds float64 `json:"seconds"`
	Warm    float64 `json:"warm"`
	Seed    uint64  `json:"seed"`
}

// String describes a run to someone who waits for it.
func (r Run) String() string {
	return fmt.Sprintf("%s at %.2g of the capacity, %s on %d × %s, attention %s, seed %d", r.Workload, r.Load, r.Policy, r.Replicas, r.Engine, r.Attention, r.Seed)
}

// Outcome is what a run showed of the requests that arrived after its warm-up.
type Outcome struct {
	Rate      float64 `json:"rate"` // arrivals/s
	Requests  int     `json:"requests"`
	Failed    int     `json:"failed"`
	TTFT      Summary `json:"ttft"`
	TPOT      Summary `json:"tpot"`
	Normal    Summary `json:"normalised"`
	LongestNL Summary `json:"longest"` // normalised latency of the tenth of the requests with the longest prompts
	// TokensPerSecond counts the answers that ended between the warm-up and the last arrival.
	TokensPerSecond float64 `json:"tokens_per_second"`
	// Attained are the shares of the requests whose TTFT and TPOT were within each of replay.Multiples of the
	// latency of a request that is alone.
	Attained [len(replay.Multiples)]float64 `json:"attained"`
	// Batches are those priced in the attention case; BatchCV and BatchSpread are the means of their lengths'
	// coefficient of variation and of longest over mean, BatchP50 and BatchP99 quantiles of all lengths in them.
	Batches     cost.Batches    `json:"batches"`
	BatchCV     float64         `json:"batch_cv"`
	BatchSpread float64         `json:"batch_spread"`
	BatchP50    policies.Tokens `json:"batch_p50"`
	BatchP99    policies.Tokens `json:"batch_p99"`
	Stages      int             `json:"stages"` // at the end; 0 for routers
	Plans       int             `json:"plans"`
	Moved       uint64          `json:"moved"`
	// Reuse is that of the whole run, its warm-up included; nil if prompts share no prefixes.
	Reuse *replay.Reuse `json:"reuse,omitempty"`
	// ReplicaTokens are the tokens that each replica generated.
	ReplicaTokens []uint64 `json:"replica_tokens"`
	// Prediction is the error of predicted latencies, of a fleet of one replica.
	Prediction Prediction `json:"prediction"`
}

// Summary describes a sample of latencies in seconds; all is 0 for an empty one.
type Summary struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// summarise sorts the values in place. Percentiles are nearest-rank.
func summarise(values []float64) (s Summary) {
	if len(values) == 0 {
		return s
	}
	slices.Sort(values)
	for _, v := range values {
		s.Mean += v / float64(len(values))
	}
	at := func(q float64) float64 { return values[max(0, int(math.Ceil(q*float64(len(values))))-1)] }
	s.P50, s.P95, s.P99 = at(0.5), at(0.95), at(0.99)
	return s
}

// inspectEvery is the virtual time between two looks into the batches.
const inspectEvery = 5 * time.Second

// Execute simulates one of Runs. The error names the run.
func (e *Evaluation) Execute(ctx context.Context, r Run) (Outcome, error) {
	out, err := e.execute(ctx, r)
	if err != nil {
		return out, fmt.Errorf("%s: %w", r, err)
	}
	return out, nil
}

func (e *Evaluation) execute(ctx context.Context, r Run) (Outcome, error) {
	w, p := e.workloads[r.Workload], e.engines[r.Engine]
	attention, err := cost.ParseAttentionCase(r.Attention)
	if err != nil {
		return Outcome{}, err
	}
	out := Outcome{Rate: r.Load * w.capacity(p) * float64(r.Replicas)}
	requests, err := w.draw(out.Rate, r.Seconds, r.Seed)
	if err != nil {
		return out, err
	}
	m := measurement{run: r, alone: w.alone(p)}
	c := sim.Config{
		Replicas: r.Replicas, Profile: p, Attention: attention, Policy: r.Policy, Seed: r.Seed, Source: &list{requests},
		Record: m.add, Inspect: m.inspect, InspectInterval: inspectEvery,
	}
	if attention == cost.MeasuredSkew {
		c.Skew = e.in.Skew
	}
	if r.Layout != "" {
		if c.Stages, err = w.layout(r.Layout, p, r.Replicas); err != nil {
			return out, err
		}
	}
	s, err := sim.New(c)
	if err != nil {
		return out, err
	}
	result, err := s.Run(ctx)
	if err != nil {
		return out, err
	}
	m.finish(&out)
	out.Batches, out.ReplicaTokens, out.Plans = result.Batches, result.Engines.Generated, len(result.Plans)
	if n := len(result.Plans); n > 0 {
		out.Stages = len(result.Plans[n-1].Counts)
	}
	out.Reuse = result.Reuse
	if result.Moves != nil {
		out.Moved = result.Moves.Moved
	}
	if r.Replicas == 1 {
		out.Prediction, err = predict(m.records, p)
	}
	return out, err
}

// list is a trace.Source.
type list struct{ rest []trace.Request }

// measurement collects what an Outcome needs.
type measurement struct {
	run     Run
	alone   replay.SLO // of a request without others
	records []replay.Record
	tokens  float64
	lengths []policies.Tokens
	cv      []float64
	spread  []float64
}

// add records the end of a request.
func (m *measurement) add(r *replay.Record) {
	if r.Error == "" && r.Due+r.E2E >= m.run.Warm && r.Due+r.E2E < m.run.Seconds {
		m.tokens += float64(r.Tokens)
	}
	if r.Due >= m.run.Warm {
		m.records = append(m.records, *r)
	}
}

// inspect records the lengths in a replica's batch.
func (m *measurement) inspect(_ int, lengths []policies.Tokens) {
	if len(lengths) < 2 {
		return
	}
	sum, squares, longest := 0.0, 0.0, 0.0
	for _, l := range lengths {
		v := float64(l)
		sum, squares, longest = sum+v, squares+v*v, max(longest, v)
	}
	n := float64(len(lengths))
	mean := sum / n
	m.cv = append(m.cv, math.Sqrt(max(0, squares/n-mean*mean))/mean)
	m.spread = append(m.spread, longest/mean)
	m.lengths = append(m.lengths, lengths...)
}

// finish fills in what was measured.
func (m *measurement) finish(out *Outcome) {
	var ttft, tpot, normal, inputs []float64
	for i := range m.records {
		inputs = append(inputs, float64(m.records[i].Input))
	}
	slices.Sort(inputs)
	var longest []float64
	attained := replay.Attainment{SLO: m.alone}
	for i := range m.records {
		r := &m.records[i]
		out.Requests++
		attained.Add(r, 1)
		if r.Error != "" {
			out.Failed++
			continue
		}
		perToken, several := r.TPOT()
		if several {
			tpot = append(tpot, perToken)
		}
		ttft, normal = append(ttft, r.TTFT), append(normal, r.E2E/float64(r.Tokens))
		if float64(r.Input) >= inputs[len(inputs)*9/10] {
			longest = append(longest, r.E2E/float64(r.Tokens))
		}
	}
	out.Attained = attained.Shares
	out.TTFT, out.TPOT, out.Normal, out.LongestNL = summarise(ttft), summarise(tpot), summarise(normal), summarise(longest)
	out.TokensPerSecond = m.tokens / (m.run.Seconds - m.run.Warm)
	out.BatchCV, out.BatchSpread = summarise(m.cv).Mean, summarise(m.spread).Mean
	if n := len(m.lengths); n > 0 {
		slices.Sort(m.lengths)
		out.BatchP50, out.BatchP99 = m.lengths[n/2], m.lengths[n*99/100]
	}
}

// Effort estimates the seconds of one processor that a run takes. It is for progress bars.
func (e *Evaluation) Effort(r Run) float64 {
	w := e.workloads[r.Workload]
	inputs := 0.0
	for _, q := range w.sample {
		inputs += float64(q.Input) / float64(len(w.sample))
	}
	perRequest := 30e-6 + 25e-9*inputs
	if !slices.Contains(baseline.Names(), r.Policy) {
		perRequest += 100e-6
	}
	return r.Load * w.capacity(e.engines[r.Engine]) * float64(r.Replicas) * r.Seconds * perRequest
}

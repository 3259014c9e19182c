package evaluation

import (
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
)

// Workload is where requests come from: a generator, or the requests of a trace.
type Workload struct {
	Name string
	// Source says where it comes from.
	Source string
	// Generator draws the requests unless Requests holds them. A trace is replayed from another place for each
	// seed, and begins again where it ends.
	Generator trace.Generator
	Requests  []trace.Request
}

// MaxLength is the longest request, prompt and answer together: the paper discards longer ones.
const MaxLength policies.Tokens = 131_072

// sampleSize is how many requests the capacity and the layouts are computed from.
const sampleSize = 4000

// workload is a Workload with the requests that its capacity is computed from.
type workload struct {
	Workload
	sample []trace.Request
}

// newWorkload draws the sample.
func newWorkload(w Workload) (*workload, error) {
	out := &workload{Workload: w}
	var err error
	if len(w.Requests) == 0 {
		g := w.Generator
		g.Requests, g.Seed = sampleSize, 1
		if out.Requests, err = g.Generate(); err != nil {
			return nil, err
		}
	}
	shape := trace.Shape{MaxLength: MaxLength, Rate: 1}
	if out.sample, err = shape.Apply(out.Requests); err != nil {
		return nil, fmt.Errorf("%s: %w", w.Name, err)
	}
	out.Requests = w.Requests
	return out, nil
}

// alone returns the mean latency of a request that has an engine for itself, by the cost model.
func (w *workload) alone(p cost.Profile) replay.SLO { return replay.Alone(p, w.sample) }

// capacity returns the requests per second that one replica can serve, by the cost model: each request costs its
// prefill, its share of the iterations of a full batch, and its attention. Prefix caches are not counted.
func (w *workload) capacity(p cost.Profile) float64 {
	seconds, held := 0.0, 0.0
	for _, r := range w.sample {
		seconds += work(p, r)
		held += float64(r.Input) + float64(r.Output)/2
	}
	n := float64(len(w.sample))
	batch := min(float64(p.MaxBatch), float64(p.KVTokens)/(held/n))
	outputs := 0.0
	for _, r := range w.sample {
		outputs += float64(r.Output)
	}
	return n / (seconds + outputs*p.D0/max(1, batch))
}

// work returns the seconds that a request costs an engine besides its iterations' fixed time.
func work(p cost.Profile, r trace.Request) float64 {
	i, o := float64(r.Input), float64(r.Output)
	return p.D2*i + p.D3*i*i + o*(p.D1+p.D4*(i+o/2))
}

// draw returns the requests of a run, sorted by arrival.
func (w *workload) draw(rate, seconds float64, seed uint64) ([]trace.Request, error) {
	n := max(20, int(rate*seconds))
	var requests []trace.Request
	if len(w.Requests) > 0 {
		requests = w.window(n, seed)
	} else {
		g := w.Generator
		g.Requests, g.Seed = n, seed
		var err error
		if requests, err = g.Generate(); err != nil {
			return nil, err
		}
	}
	return trace.Shape{Rate: rate, MaxLength: MaxLength, Seed: seed}.Apply(requests)
}

// windows is how many different beginnings a trace has.
const windows = 8

// window returns n requests of the trace from a place that the seed decides.
func (w *workload) window(n int, seed uint64) []trace.Request {
	all := w.Requests
	first := len(all) * int((seed-1)%windows) / windows
	out := make([]trace.Request, 0, n)
	var shift time.Duration
	for i := range n {
		at := (first + i) % len(all)
		if at == 0 && i > 0 {
			shift = out[i-1].At + time.Millisecond - all[0].At
		}
		r := all[at]
		if r.At >= 0 {
			r.At += shift
		}
		out = append(out, r)
	}
	return out
}

// Next implements trace.Source.
func (l *list) Next() (trace.Request, error) {
	if len(l.rest) == 0 {
		return trace.Request{}, io.EOF
	}
	r := l.rest[0]
	l.rest = l.rest[1:]
	return r, nil
}

// layoutFour is the layout of four stages of equally many replicas; the other layouts are policies.
const layoutFour = "4 x n"

// layout returns stages that divide the workload's work evenly between the replicas.
func (w *workload) layout(name string, p cost.Profile, replicas int) (l policies.Partition, err error) {
	const stages = 4
	l.Cuts = w.evenCuts(p, stages)
	if name != layoutFour || replicas%stages != 0 || len(l.Cuts) != stages-1 {
		return l, fmt.Errorf("layout %q of %d replicas: give a multiple of %d, and a workload of at least so many different lengths", name, replicas, stages)
	}
	for range stages {
		l.Counts = append(l.Counts, replicas/stages)
	}
	return l, nil
}

// evenCuts returns the lengths that cut the work of the sample into n parts as equal as buckets of eight to an
// octave allow. A request's prefill is work at the length of its prompt, its tokens at the lengths they have.
func (w *workload) evenCuts(p cost.Profile, n int) (cuts []policies.Tokens) {
	edges := policies.BucketEdges(MaxLength, 8)
	at := make([]float64, len(edges))
	total := 0.0
	for _, r := range w.sample {
		i := float64(r.Input)
		prefill := p.D2*i + p.D3*i*i
		at[policies.BucketOf(edges, r.Input)] += prefill
		total += prefill
		const parts = 8 // of an answer, which lie in different buckets
		for k := range parts {
			length := i + (float64(k)+0.5)*float64(r.Output)/parts
			tokens := (p.D1 + p.D4*length) * float64(r.Output) / parts
			at[policies.BucketOf(edges, policies.Tokens(length))] += tokens
			total += tokens
		}
	}
	sum := 0.0
	for b, v := range at {
		if sum >= total*float64(len(cuts)+1)/float64(n) && len(cuts) < n-1 && edges[b] > 0 {
			cuts = append(cuts, edges[b])
		}
		sum += v
	}
	return cuts
}

package dialect

import (
	"bytes"
	"errors"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// ErrNoMetrics is returned for an answer in which no metrics of the engine are known.
var ErrNoMetrics = errors.New("no metrics of an engine of the kind that it says it is")

// Bounds of what engines may state; beyond them a value is not taken.
const (
	MaxRequests = 1 << 24
	MaxTokens   = 1 << 40
)

// Samples are the samples of an answer in Prometheus's text format, by their name in the text.
type Samples map[string][]*dto.Metric

// ReadSamples parses the lines of the wanted names and of TakeStart, each on its own, so that a bad one costs
// no other. Histograms and the like need not be parsed: an engine has hundreds of them.
func ReadSamples(text []byte, wanted func(name string) bool) Samples {
	out := make(Samples)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	for line := range bytes.Lines(text) {
		end := bytes.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		name := string(line[:end])
		if name != started && !wanted(name) {
			continue
		}
		// Without a TYPE line every sample is a family of its own.
		families, err := parser.TextToMetricFamilies(bytes.NewReader(append(bytes.TrimSpace(line), '\n')))
		if err == nil && families[name] != nil {
			out[name] = append(out[name], families[name].GetMetric()...)
		}
	}
	return out
}

// started is the sample that any process has.
const started = "process_start_time_seconds"

// TakeStart returns when the process started, 0 if that is not stated, and removes the sample: any process
// has it.
func (s Samples) TakeStart() float64 {
	defer delete(s, started)
	return s.Sum(started, math.MaxFloat64)
}

// value returns a sample's value, and whether it is a number from 0 to most.
func value(s *dto.Metric, most float64) (float64, bool) {
	v := s.GetUntyped().GetValue()
	return v, v >= 0 && v <= most
}

// Sum adds up the samples of the engines behind one address (data parallelism).
func (s Samples) Sum(name string, most float64) (total float64) {
	for _, sample := range s[name] {
		if v, ok := value(sample, most); ok {
			total += v
		}
	}
	return min(total, most)
}

// SumWhere is Sum of the samples that have a label with a value.
func (s Samples) SumWhere(name, label, is string, most float64) float64 {
	var some []*dto.Metric
	for _, sample := range s[name] {
		if Label(sample, label) == is {
			some = append(some, sample)
		}
	}
	return Samples{name: some}.Sum(name, most)
}

// Mean returns the mean of the samples of the engines behind one address, which are alike.
func (s Samples) Mean(name string) (mean float64, ok bool) {
	total, n := 0.0, 0
	for _, sample := range s[name] {
		if v, ok := value(sample, math.MaxInt32); ok {
			total, n = total+v, n+1
		}
	}
	return total / float64(max(n, 1)), n > 0
}

// Label returns the value of a sample's label, "" for none.
func Label(sample *dto.Metric, name string) string {
	for _, l := range sample.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// LabelTokens returns the number in a sample's label, 0 if it has none.
func LabelTokens(sample *dto.Metric, name string) policies.Tokens {
	n, err := strconv.ParseInt(Label(sample, name), 10, 64)
	if err != nil || n < 0 || n > MaxRequests*64 {
		return 0
	}
	return policies.Tokens(n)
}

// TakeLoad takes into m what engines of both kinds state alike: how many requests are running and waiting, and which
// share of m.KVTokens is in use.
func (s Samples) TakeLoad(m *engineinfo.Metrics, running, waiting, usage string) {
	if share, known := s.Mean(usage); known && m.KVTokens > 0 {
		m.Load.Capacity, m.Load.KVUsed = m.KVTokens, policies.Tokens(math.Round(min(share, 1)*float64(m.KVTokens)))
	}
	m.StatesRequests = len(s[running]) > 0
	m.Load.Running, m.Load.Waiting = int(s.Sum(running, MaxRequests)), int(s.Sum(waiting, MaxRequests))
	m.Load.Queued = m.Load.Waiting
}

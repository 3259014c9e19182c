package fleet

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// The counters file, version 1: one JSON object, written whole. It lets a
// control plane that restarts plan on what the fleet saw before, and serve the
// same weights and byte ranges as before until reports say otherwise. Losing
// it costs one warm-up and nothing else, so a file of another version, or one
// that cannot be read, is set aside.
const countersVersion = 1

// maxCounters bounds the file: 10,000 replicas with 1,000 buckets fit.
const maxCounters = 1 << 30

type countersFile struct {
	Version  int           `json:"version"`
	Saved    time.Time     `json:"saved"`
	Models   []keptModel   `json:"models"`
	Replicas []keptReplica `json:"replicas"`
}

type keptModel struct {
	Name string `json:"name"`
	// BytesPerToken is the served ratio, in thousandths.
	BytesPerToken length.Ratio `json:"bytes_per_token_milli"`
}

type keptReplica struct {
	ID       policies.ReplicaID `json:"id"`
	Model    string             `json:"model"`
	Reported time.Time          `json:"reported"`
	Weight   uint32             `json:"weight"`
	Past     uint64             `json:"past"` // requests of earlier lives of the front
	Learnt   float64            `json:"bytes_per_token"`
	Flow     keptFlow           `json:"flow"`
}

type keptFlow struct {
	Edges     []policies.Tokens `json:"edges,omitempty"`
	Arrivals  []float64         `json:"arrivals,omitempty"`
	Tokens    []float64         `json:"tokens,omitempty"`
	Reads     []float64         `json:"reads,omitempty"`
	Prefill   []float64         `json:"prefill,omitempty"`
	Prefill2  []float64         `json:"prefill2,omitempty"`
	Weight    []float64         `json:"weight,omitempty"`
	Crossings []float64         `json:"crossings,omitempty"`
	Seen      uint64            `json:"seen"`
}

// Counters encodes what the State would lose by a restart beyond its plans.
func (s *State) Counters(now time.Time) ([]byte, error) {
	f := countersFile{Version: countersVersion, Saved: now}
	for _, m := range s.models {
		f.Models = append(f.Models, keptModel{m.Name, m.ratio})
	}
	for _, r := range s.replicas {
		if !r.gone {
			f.Replicas = append(f.Replicas, keptReplica{
				ID: r.ID, Model: r.Model, Reported: r.at, Weight: s.weightOf(r), Past: r.past,
				Learnt: r.report.BytesPerToken, Flow: keptFlow(r.report.Flow),
			})
		}
	}
	data, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode counters: %w", err)
	}
	return data, nil
}

// Restore takes in what Counters wrote. It belongs before the first Replicas
// event, which then finds its replicas there; the others are forgotten. Any
// error leaves the State as it was.
func (s *State) Restore(now time.Time, data []byte) error {
	f, err := decodeCounters(data)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	for _, k := range f.Models {
		if m := s.model(k.Name); m != nil {
			m.ratio, m.wish = k.BytesPerToken, k.BytesPerToken
		}
	}
	s.kept = make(map[policies.ReplicaID]keptReplica, len(f.Replicas))
	for _, k := range f.Replicas {
		s.kept[k.ID] = k
	}
	return nil
}

// restore gives a replica back what was kept of it.
func (r *replica) restore(now time.Time, k keptReplica) {
	if k.ID != r.ID || k.Model != r.Model {
		return
	}
	r.weight, r.past = steps[stepOf(k.Weight)], k.Past
	if k.Reported.IsZero() {
		return
	}
	// now may carry a monotonic clock, the file's time does not.
	r.at = now.Add(-max(now.Sub(k.Reported), 0))
	r.report = Report{Replica: k.ID, Model: k.Model, BytesPerToken: k.Learnt, Flow: policies.Flow(k.Flow)}
}

// decodeCounters reads and checks a counters file.
func decodeCounters(data []byte) (countersFile, error) {
	var f countersFile
	if err := json.Unmarshal(data, &f); err != nil {
		return countersFile{}, err
	}
	if f.Version != countersVersion {
		return countersFile{}, fmt.Errorf("version %d; this program reads %d", f.Version, countersVersion)
	}
	for _, m := range f.Models {
		if m.BytesPerToken.Clamp() != m.BytesPerToken {
			return countersFile{}, fmt.Errorf("model %.40q: bytes_per_token_milli %d", m.Name, m.BytesPerToken)
		}
	}
	for _, r := range f.Replicas {
		if !within(r.Learnt, maxBytesPer) {
			return countersFile{}, fmt.Errorf("replica %.40q: bytes_per_token %v", r.ID, r.Learnt)
		}
		if err := checkFlow(policies.Flow(r.Flow)); err != nil {
			return countersFile{}, fmt.Errorf("replica %.40q: %w", r.ID, err)
		}
	}
	return f, nil
}

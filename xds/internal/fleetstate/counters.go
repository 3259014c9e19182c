package fleetstate

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// countersVersion is that of Counters.
const countersVersion = 1

// Counters is the counters file, version 1: one JSON object, replaced as a whole. It lets a
// control plane that restarts plan on what the fleet saw before, and serve the same
// weights and byte ranges as before until reports change them. Losing it costs one
// warm-up and nothing else, so a file of another version, or one that cannot be
// read, is ignored.
type Counters struct {
	Version  int               `json:"version"`
	Saved    time.Time         `json:"saved"`
	Models   []ModelRatio      `json:"models"`
	Replicas []replicaCounters `json:"replicas"`
}

// ModelRatio is the served ratio of a model.
type ModelRatio struct {
	Name string `json:"name"`
	// BytesPerToken is in thousandths.
	BytesPerToken length.Ratio `json:"bytes_per_token_milli"`
}

type replicaCounters struct {
	ID          policies.ReplicaID `json:"id"`
	Model       string             `json:"model"`
	Reported    time.Time          `json:"reported"`
	Weight      uint32             `json:"weight"`
	EarlierSeen uint64             `json:"earlier_seen"`
	Learnt      float64            `json:"bytes_per_token"`
	Flow        flowCounters       `json:"flow"`
}

type flowCounters struct {
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

// Counters returns the ratios, and what the registry would lose by a restart. It shares the flows with the reports,
// which nothing changes.
func (g *Registry) Counters(now time.Time, ratios []ModelRatio) Counters {
	f := Counters{Version: countersVersion, Saved: now, Models: ratios}
	for _, r := range g.replicas {
		if !r.Removed {
			f.Replicas = append(f.Replicas, replicaCounters{
				ID: r.ID, Model: r.Model, Reported: r.ReportedAt, Weight: g.ServedWeight(r), EarlierSeen: r.earlierSeen,
				Learnt: r.Report.BytesPerToken, Flow: flowCounters(r.Report.Flow),
			})
		}
	}
	return f
}

// Encode returns the contents of the file. For a large fleet that takes most of a second.
func (c Counters) Encode() ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode counters: %w", err)
	}
	return data, nil
}

// RestoreCounters reads what Counters.Encode wrote, and returns the ratios. It is
// called before the first Configure, which restores the replicas that it configures;
// the others are dropped. An error leaves the registry unchanged.
func (g *Registry) RestoreCounters(data []byte) ([]ModelRatio, error) {
	f, err := decodeCounters(data)
	if err != nil {
		return nil, fmt.Errorf("decode counters: %w", err)
	}
	g.restored = make(map[policies.ReplicaID]replicaCounters, len(f.Replicas))
	for _, c := range f.Replicas {
		g.restored[c.ID] = c
	}
	return f.Models, nil
}

// restore sets a replica's counters to those of an earlier process.
func (r *Replica) restore(now time.Time, c replicaCounters) {
	if c.ID != r.ID || c.Model != r.Model {
		return
	}
	r.Weight, r.earlierSeen = balance.ValidWeight(c.Weight), c.EarlierSeen
	if c.Reported.IsZero() {
		return
	}
	// now may carry a monotonic clock, the file's time does not.
	r.ReportedAt = now.Add(-max(now.Sub(c.Reported), 0))
	r.Report = loadreport.Report{Replica: c.ID, Model: c.Model, BytesPerToken: c.Learnt, Flow: policies.Flow(c.Flow)}
}

// decodeCounters reads and checks a counters file.
func decodeCounters(data []byte) (Counters, error) {
	var f Counters
	if err := json.Unmarshal(data, &f); err != nil {
		return Counters{}, err
	}
	if f.Version != countersVersion {
		return Counters{}, fmt.Errorf("version %d is not supported; this program reads version %d", f.Version, countersVersion)
	}
	for _, m := range f.Models {
		if m.BytesPerToken.Clamp() != m.BytesPerToken {
			return Counters{}, fmt.Errorf("model %.40q: bytes_per_token_milli %d is out of range", m.Name, m.BytesPerToken)
		}
	}
	for _, r := range f.Replicas {
		if !loadreport.Within(r.Learnt, loadreport.MaxBytesPerToken) {
			return Counters{}, fmt.Errorf("replica %.40q: bytes_per_token %v is out of range", r.ID, r.Learnt)
		}
		if err := loadreport.CheckFlow(policies.Flow(r.Flow)); err != nil {
			return Counters{}, fmt.Errorf("replica %.40q: flow: %w", r.ID, err)
		}
	}
	return f, nil
}

package client

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Stage is a stage of a model as proxies route to it: its range, and the endpoints in the
// order of their priorities, which are the stage's replicas, the next longer stage's and all
// others.
type Stage struct {
	Low, High policies.Tokens
	Endpoints *Assignment
}

// ReadStages reads the stages of all models from a snapshot, short to long, by model. In
// contrast to ReadPlans it keeps what a data plane needs: addresses, health, weights and
// priorities. It returns an error if the ranges of a model have a gap, or if a stage's
// endpoints are not known yet: the caller keeps what it read last.
func ReadStages(s *Snapshot) (map[string][]Stage, error) {
	type key struct {
		model string
		stage int
	}
	found, count := make(map[key]Stage), make(map[string]int)
	for _, t := range s.UsedTables() {
		for _, h := range t.Hosts {
			for _, r := range h.Routes {
				if r.Metadata.GetFilterMetadata()[resources.MetadataKey] == nil {
					continue
				}
				m, err := resources.ReadRouteMeta(r.Metadata)
				if err != nil {
					return nil, fmt.Errorf("stages: route table %s, route %s: %w", t.Name, r.Name, err)
				}
				k := key{m.Model, m.Stage}
				if m.Rule == resources.ByPrefix || found[k].Endpoints != nil {
					continue
				}
				c := s.Clusters[r.Cluster]
				if c == nil || s.Assignment(c) == nil {
					return nil, fmt.Errorf("stages: model %s, stage %d: cluster %q has no endpoints yet", m.Model, m.Stage, r.Cluster)
				}
				found[k] = Stage{m.Low, m.High, s.Assignment(c)}
				count[m.Model]++
			}
		}
	}
	out := make(map[string][]Stage, len(count))
	for model, n := range count {
		end := policies.Tokens(0)
		for k := range n {
			stage, ok := found[key{model, k}]
			if !ok || stage.Low != end || stage.High <= stage.Low {
				return nil, fmt.Errorf("stages: model %s: no stage %d of %d from %d tokens on", model, k, n, end)
			}
			end = stage.High
			out[model] = append(out[model], stage)
		}
		if end != policies.Unbounded {
			return nil, fmt.Errorf("stages: model %s: the last stage ends at %d tokens", model, end)
		}
	}
	return out, nil
}

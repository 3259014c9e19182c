package fleetview

import (
	"fmt"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// StageHits counts the stages that served requests, by exact prompt length and the plan that routed
// the request.
type StageHits struct {
	InRange int `json:"in_range"` // served by the stage that covers the prompt
	Next    int `json:"adjacent"` // served by the neighbour: the estimate was off at a boundary
	Other   int `json:"elsewhere"`
	Unknown int `json:"unknown"` // the response named no stage, or an epoch that the history no longer holds
}

// CountStageHits counts the stages that served the requests of a replay. Those that failed do not count.
func CountStageHits(records []replay.Record, history []control.Change) StageHits {
	plans := map[string][]control.DecidedStage{}
	for _, c := range history {
		plans[fmt.Sprint(c.Epoch)] = c.Stages
	}
	var p StageHits
	for _, rec := range records {
		stages := plans[rec.Epoch]
		if rec.Error != "" {
			continue
		}
		got, want := -1, -1
		for i, s := range stages {
			if s.Name == rec.Stage {
				got = i
			}
			if want < 0 && (s.High == nil || policies.Tokens(rec.Prompt) < *s.High) {
				want = i
			}
		}
		switch {
		case got < 0 || want < 0:
			p.Unknown++
		case got == want:
			p.InRange++
		case got == want-1 || got == want+1:
			p.Next++
		default:
			p.Other++
		}
	}
	return p
}

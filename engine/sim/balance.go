package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// balanceInterval is the time between two samples of the spread of load.
const balanceInterval = time.Second

// sampleBalance samples how work is spread over the replicas of each stage: of the plan in force, or over
// all of them under a router. Once the last request has arrived, loads only fade.
func (s *Sim) sampleBalance() {
	s.nextBalance = s.now + balanceInterval
	if s.sourceEnded {
		return
	}
	if s.work == nil {
		s.work, s.stages = make([]float64, len(s.replicas)), make([]int, len(s.replicas))
	}
	for i, r := range s.replicas {
		x := r.scheduler.Stats()
		computed := x.PrefixQueries - x.PrefixHits
		if s.cfg.NoPrefixCache {
			computed = x.PromptTokens
		}
		s.work[i] = replay.EngineWork(float64(computed), float64(x.GenerationTokens))
		if s.cascade != nil {
			s.stages[i] = -1 // replicas that fail or drain are in none
		}
	}
	if s.cascade != nil {
		for k, members := range s.cascade.members {
			for _, i := range members {
				s.stages[i] = k
			}
		}
	}
	s.balance.Sample(s.now.Seconds(), s.work, s.stages)
}

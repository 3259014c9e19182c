package fleetstate

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// steadyKV is how long a replica must have reported another size of its KV cache, or an engine
// without one, before that counts. An engine changes it only by a restart: one that swings
// would make and unmake plans.
const steadyKV = 10 * time.Second

// kvCache is the size of a replica's KV cache as its migrator reports it.
type kvCache struct {
	counts   policies.Tokens // the one that counts; 0: the configured one
	reported policies.Tokens // the last one that may count; 0: none
	since    time.Time       // when reported began
	unknown  time.Time       // since when the engine states none; zero: it does
	small    policies.Tokens // the last one, if it is too small to count, else 0
}

// record updates the size by a report. least is the length of the model's longest sequence.
// A smaller cache does not count: every plan with it would be infeasible, also for the
// model's other replicas.
func (c *kvCache) record(now time.Time, report *loadreport.Report, least policies.Tokens) {
	kv := report.Load.Engine.Capacity
	switch {
	case kv <= 0 && (report.Engine.KVTokens > 0 || !report.EngineReady):
		return // its load is not known now
	case kv <= 0:
		// Another engine than the one whose cache counts, which says nothing of its own.
		if c.small = 0; c.unknown.IsZero() {
			c.unknown = now
		}
		if now.Sub(c.unknown) >= steadyKV {
			c.counts, c.reported = 0, 0
		}
		return
	}
	if c.unknown, c.small = (time.Time{}), 0; kv < least {
		c.small = kv
		return
	}
	if kv != c.reported {
		c.reported, c.since = kv, now
	}
	if c.counts == 0 || now.Sub(c.since) >= steadyKV {
		c.counts = kv
	}
}

// applyReportedKV replaces the configured size of the KV cache by the reported one, in which
// the migrator has respected what the fleet file states. It returns true if another size
// counts than before.
func (r *Replica) applyReportedKV() bool {
	before := r.Capacity.KV
	if r.Capacity.KV = r.kv.counts; r.kv.counts == 0 {
		r.Capacity.KV = r.configuredKV
	}
	return r.Capacity.KV != before
}

// kvProblem returns the problem of a KV cache that is too small, and whether there is one.
func (r *Replica) kvProblem() (loadreport.Problem, bool) {
	if r.kv.small == 0 {
		return loadreport.Problem{}, false
	}
	return loadreport.NewProblem(loadreport.ProblemCapacity, fmt.Sprintf(
		"the engine has a KV cache of %d tokens, less than one sequence of model %s: plans count %d instead; give the engine more memory, or lower models[].context and its --max-model-len",
		r.kv.small, r.Model, r.Capacity.KV)), true
}

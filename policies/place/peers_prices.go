package place

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Resident is a request that a replica has: it generates tokens, or waits for its first one.
type Resident struct {
	Input     policies.Tokens // the prompt, or the sum of Prompts
	Cached    policies.Tokens // of it, what the engine is expected to have in its prefix cache
	Output    policies.Tokens // generated so far; 0: it waits
	MaxOutput policies.Tokens // that its client allows; 0: any number
	Arrived   policies.Micros
	// Prompts is how many it has, and Sequences how many it generates for all of them: Output is their sum. 0 means 1.
	Prompts, Sequences int
	// Prefilling says that its KV is computed anew: it waits, whatever it has generated.
	Prefilling bool
	// Leaving says that it is for sale: FindMove leaves it out.
	Leaving bool
}

// runs reports whether it generates tokens.
func (r *Resident) runs() bool { return r.Output > 0 && !r.Prefilling }

// sequences returns how many sequences it generates, and the prompt and the output of each.
func (r *Resident) sequences() (n, input, output policies.Tokens) {
	n = policies.Tokens(max(r.Sequences, 1))
	return n, r.Input / policies.Tokens(max(r.Prompts, 1)), r.Output / n
}

// running describes a request that generates tokens and ends after so many more, without its weight.
func (r *Resident) running(remaining policies.Tokens) Running {
	n, input, output := r.sequences()
	return Running{Count: int(n), Length: n*input + r.Output, Longest: input + output, Remaining: remaining}
}

// describeRunning describes a request that generates tokens, by how many o expects of it.
func (r *Resident) describeRunning(o *Outputs) Running {
	n, input, output := r.sequences()
	expected := o.Expect(input, output, r.MaxOutput)
	g := r.running(expected - output)
	g.Weight = float64(n) / float64(expected)
	return g
}

// describeWaiting describes a request that waits, by how many tokens o expects of it.
func (r *Resident) describeWaiting(o *Outputs) Waiting {
	n, input, output := r.sequences()
	expected := o.Expect(input, output, r.MaxOutput)
	w := Waiting{Length: r.Input + r.Output, Cached: min(r.Cached, r.Input), Ready: r.Arrived}.Weigh(expected)
	w.Output -= output
	w.Weight, w.FirstWeight = w.Weight*float64(n), w.FirstWeight*float64(n)
	if r.Output > 0 {
		w.FirstWeight = 0
	}
	return w
}

// State is the load of a replica as a Model counts it.
type State struct {
	// At is when the engine's last iteration ended, or will end: from then on the state is moved on.
	At policies.Micros
	// Used is how many tokens of the KV cache are used, those that requests share counted once; 0: not known.
	Used policies.Tokens
	// Iteration is how many seconds an iteration of 16 sequences of 1,024 tokens takes there, by its profile and by what
	// its requests took (Calibration); 0: not known.
	Iteration float64
	Running   []Running
	Waiting   []Waiting
}

// Describe sets s to the state of a replica that has these requests, in the order of their arrival, by how many
// tokens o expects of them. It keeps the memory of s.
func (s *State) Describe(o *Outputs, residents []Resident) {
	s.Running, s.Waiting = s.Running[:0], s.Waiting[:0]
	for i := range residents {
		if r := &residents[i]; r.runs() {
			s.Running = append(s.Running, r.describeRunning(o))
		} else {
			s.Waiting = append(s.Waiting, r.describeWaiting(o))
		}
	}
}

const (
	// MaxGroups bounds the groups of running sequences in a compact state, and MaxWaiting its prompts: what a price
	// takes, and the bytes of a summary.
	MaxGroups  = 64
	MaxWaiting = 64
)

// Compact merges running sequences that are expected to end one after the other, so that at most MaxGroups groups
// are left, and the last prompts, so that at most MaxWaiting are left.
func (s *State) Compact() {
	if len(s.Running) > MaxGroups {
		slices.SortFunc(s.Running, func(a, b Running) int { return int(a.Remaining - b.Remaining) })
		size := (len(s.Running) + MaxGroups - 1) / MaxGroups
		merged := s.Running[:0]
		for i := 0; i < len(s.Running); i += size {
			merged = append(merged, mergeRunning(s.Running[i:min(i+size, len(s.Running))]))
		}
		s.Running = merged
	}
	if len(s.Waiting) > MaxWaiting {
		last := s.Waiting[MaxWaiting-1]
		for _, w := range s.Waiting[MaxWaiting:] {
			last.Length, last.Cached = last.Length+w.Length, last.Cached+w.Cached
			last.Allocated, last.Output = last.Allocated+w.Allocated, max(last.Output, w.Output)
			last.Weight, last.FirstWeight = last.Weight+w.Weight, last.FirstWeight+w.FirstWeight
		}
		s.Waiting = append(s.Waiting[:MaxWaiting-1], last)
	}
}

// mergeRunning returns groups as one that ends at their mean end.
func mergeRunning(groups []Running) (all Running) {
	remaining := policies.Tokens(0)
	for _, g := range groups {
		all.Count, all.Length = all.Count+g.Count, all.Length+g.Length
		all.Longest, all.Weight = max(all.Longest, g.Longest), all.Weight+g.Weight
		remaining += g.Remaining * policies.Tokens(g.Count)
	}
	all.Remaining = remaining / policies.Tokens(all.Count)
	return all
}

// SetOwnState sets what this replica has: s describes the residents, in the order of their arrival. It sets
// s.Iteration, and learns how fast the engine is. Peers copies what it keeps.
func (b *Peers) SetOwnState(now policies.Micros, s *State, residents []Resident) {
	if b.cfg.Engine != nil {
		b.calibration.Observe(b.cfg.Engine, s, residents)
		s.Iteration = b.cfg.Engine.typical() * b.calibration.Slowdown()
		b.view.Report(now, s)
		b.ownState = State{At: s.At, Used: s.Used}
	}
}

// Slowdown returns how many times as long this replica's iterations take as Config.Engine says; see Calibration.
func (b *Peers) Slowdown() float64 { return b.calibration.Slowdown() }

// SetPeerState sets what a peer has, as of now. Peers copies it.
func (b *Peers) SetPeerState(now policies.Micros, from policies.ReplicaID, s *State) {
	e := b.peers[from]
	if e == nil || b.cfg.Engine == nil {
		return
	}
	believed, known := e.view.Held(now), e.view.reported
	e.view.Report(now, s)
	if known {
		b.loadError.observe(believed, e.view.Held(now))
	}
}

// loadError is how far what was believed of peers differs from what they report.
type loadError struct{ missed, reported float64 } // tokens, of which reports in the past count less

// loadErrorMemory is the share of its weight that a comparison keeps when the next one comes: about 50 count.
const loadErrorMemory = 0.98

func (l *loadError) observe(believed, reported policies.Tokens) {
	l.missed = l.missed*loadErrorMemory + math.Abs(float64(believed-reported))
	l.reported = l.reported*loadErrorMemory + float64(reported)
}

// LoadError returns by what share of their tokens the running requests of peers differ from what this replica believed
// just before the peers' last reports, about 50 of them: the error of moving reports on by a Model and by what was
// sent. 0 if nothing was reported yet.
func (b *Peers) LoadError() float64 {
	if b.loadError.reported == 0 {
		return 0
	}
	return b.loadError.missed / b.loadError.reported
}

// AddArrivals adds requests that a replica, this one or a peer, has accepted since it reported its state, but those
// that were placed there by this replica.
func (b *Peers) AddArrivals(now policies.Micros, at policies.ReplicaID, arrivals []Waiting) {
	if b.cfg.Engine == nil {
		return
	}
	view := b.view
	if at != b.cfg.Self {
		e := b.peers[at]
		if e == nil {
			return
		}
		view = e.view
	}
	for _, w := range arrivals {
		view.Send(now, w)
	}
}

// ObserveEnd learns how many tokens a request generated.
func (b *Peers) ObserveEnd(input, output policies.Tokens) { b.outputs.Observe(input, output) }

// DescribeOwn describes the requests of this replica by what it expects of them.
func (b *Peers) DescribeOwn(s *State, residents []Resident) { s.Describe(&b.outputs, residents) }

// expect returns how many tokens a request is expected to generate.
func (b *Peers) expect(r *policies.Request) policies.Tokens {
	return b.outputs.Expect(r.Input, 0, r.MaxOutput)
}

// arrival returns a request as it would arrive at a replica that has so many tokens of its prompt, if some candidate
// has most of them: the difference may be copied. It generates so many tokens of output.
func (b *Peers) arrival(now policies.Micros, r *policies.Request, held, most, output policies.Tokens) Waiting {
	w := Waiting{Length: max(r.Length(), 1), Cached: min(held, max(r.Input-1, 0))}
	if more := min(most, max(r.Input-1, 0)) - w.Cached; more > 0 && b.cfg.CopySeconds > 0 {
		takes := pullSetup + policies.Micros(float64(more)*b.cfg.CopySeconds*1e6)
		if pullPays(takes, Recompute(b.cfg.Engine.Cost, w.Cached, w.Cached+more)) {
			w.Cached, w.Copied = w.Cached+more, more
			w.Ready = now + takes
		}
	}
	w = w.Weigh(output)
	if n := float64(max(r.Prompts, 1)); n > 1 { // each as long as the longest
		w.Length, w.Cached = w.Length*policies.Tokens(n), w.Cached*policies.Tokens(n)
		w.Weight, w.FirstWeight = w.Weight*n, w.FirstWeight*n
	}
	return w
}

// price sets the prices of this replica and of the sites.
func (b *Peers) price(now policies.Micros, r *policies.Request, own *policies.Candidate) {
	if b.cfg.Engine == nil {
		return
	}
	most, output := b.longestHeld(*r), b.expect(r)
	own.Price = b.view.Price(now, b.arrival(now, r, own.Prefix, most, output), &b.pricing)
	for i := range b.sites {
		s := &b.sites[i]
		s.Price = b.peers[s.ID].view.Price(now, b.arrival(now, r, s.Prefix, most, output), &b.pricing)
	}
}

package enginestate

import (
	"math"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// A Monitor decides whether an inference engine makes progress: whether its core
// generates tokens, which a health check does not show. An engine's /health answers 200 while a
// GPU kernel or a collective is stuck, for hours.
//
// The driver, migrator/frontend, counts what the engine brings and calls Monitor.Check a
// few times a second. The package reads no clock.
//
// Invariants:
//
//  1. Only the engine as a whole counts. A stream that pauses proves nothing, because an
//     engine whose KV cache is full preempts it for as long as others generate.
//  2. An engine is hung only after it brought nothing for three times as long as its cost
//     profile predicts for its work, and for at least minPause of New, or MinTransferPause. A long prefill is
//     progress that is expected. An engine that was slower, and one that has just
//     started, gets more time.
//  3. An engine without work is never found hung, nor is the process's own pause the
//     engine's: time between two calls that are more than MaxGap apart does not count.
//  4. A hung engine is hung until Resume: until it has answered a request.

const (
	// MinPause is the least time without progress after which an engine is hung; New may get another one.
	MinPause = 2 * time.Second
	// MinTransferPause is the least such time while KV travels from or to the engine. A handshake with an
	// engine that it has not met may stop an engine's core: NIXL's takes 3.75 s on two busy cores. It is less
	// than the time that a handoff has, so that a holder which hangs in one is found in time to
	// compute the KV elsewhere.
	MinTransferPause = 4500 * time.Millisecond
	// MaxGap is the longest time between two calls of Check that counts. They come more
	// often unless this process got no CPU, and then it has not read what the engine brought.
	MaxGap = 500 * time.Millisecond
	// patience is how many times longer than predicted a step may take.
	patience = 3
	// StepTokens is the most prompt tokens that a step computes, as engines do it by default on
	// large GPUs.
	StepTokens = 8192

	// tokenizeRate is how many bytes of text a slow tokenizer turns into tokens per second.
	tokenizeRate = 1 << 20

	// minLearnt is the shortest predicted step that teaches how slow an engine is:
	// shorter ones take as long as the driver's clock is coarse.
	minLearnt = 250 * time.Millisecond
	maxSlack  = 8
	forget    = 5 * time.Minute // in which most of the slack is lost

	// givenUpLimit is how many streams must have been given up one by one within
	// givenUpWindow for the engine to be hung although others progress: one of several
	// cores behind one API server hangs.
	givenUpLimit  = 3
	givenUpWindow = 30 * time.Second
)

// Work is what an engine has to do, as far as it shows in tokens.
type Work struct {
	Running       int             // requests that have had a token
	Held, Longest policies.Tokens // Σ and maximum of their lengths
	Waiting       int             // requests without a token
	Promised      policies.Tokens // Σ of their lengths
	LongestPrompt policies.Tokens // the maximum of them
	LongestBody   int             // the maximum of their bodies, in bytes
	Transferring  bool            // the engine gives KV to another one, or fetches it
}

// Idle reports whether no token is to be expected.
func (w Work) Idle() bool { return w.Running+w.Waiting == 0 }

// Predict returns the seconds until an engine of this cost brings the next token of any
// request. A step computes one token of each running request and a chunk of the
// prompts. Without a running request there is no token before a whole prompt is
// computed, which may be the longest one. The longest body is tokenized before, which may stop the others.
func Predict(c policies.Cost, w Work) float64 {
	return predictSteps(c, w) + float64(w.LongestBody)/tokenizeRate
}

func predictSteps(c policies.Cost, w Work) float64 {
	prompt, longest := float64(w.Promised), float64(w.LongestPrompt)
	if w.Running > 0 {
		chunk := min(prompt, StepTokens)
		n, held := float64(w.Running), float64(w.Held)
		skew := float64(w.Longest) - held/n
		return c.D0 + float64(c.D1*n) + float64(c.D4*(held+float64(c.Kappa*skew))) + float64(c.D2*chunk) + float64(c.D3*2*longest*chunk)
	}
	if w.Waiting == 0 {
		return 0
	}
	tokens := min(prompt, longest+StepTokens)
	steps := math.Ceil(max(tokens, 1) / StepTokens)
	return float64(steps*c.D0) + float64(c.D2*tokens) + float64(c.D3*(longest*longest+2*longest*(tokens-longest)))
}

// CoreState is what is known of an engine's progress.
type CoreState uint8

// The states.
const (
	Progressing CoreState = iota // or idle
	Quiet                        // half the time has passed after which it is hung
	Hung
)

// String names the state in lower case.
func (s CoreState) String() string { return [...]string{"progressing", "quiet", "hung"}[s] }

// Monitor judges one engine. It is not safe for concurrent use.
type Monitor struct {
	cost         policies.Cost
	minPause     time.Duration // the least pause after which it is hung
	state        CoreState
	brought      uint64        // what the engine had brought at the last call
	last         time.Duration // the time of the last call
	pause        time.Duration // since it brought something, or since it has work
	expected     time.Duration // the prediction for its work
	transferring bool          // KV travels from or to it
	// slack multiplies the limit, from 1 to maxSlack. It is how many times slower than
	// its profile the engine was, and doubles with every verdict that the engine
	// survived: one that pauses now and then must not be emptied every time.
	slack   float64
	cold    bool // it has brought nothing yet: engines compile kernels for their first requests
	givenUp []time.Duration
}

// NewMonitor returns the Monitor of an engine that has just started, when brought (see Check) has
// this value. The engine is hung after minPause at the earliest, MinPause unless a caller has reason for another one. A
// cost of zero predicts nothing, so that minPause decides.
func NewMonitor(c policies.Cost, minPause time.Duration, brought uint64) *Monitor {
	return &Monitor{cost: c, minPause: minPause, brought: brought, slack: maxSlack, cold: true}
}

// Check takes note of the state at now, which must not go back, and returns whether the
// monitoredEngine makes progress. brought grows with everything that the engine brings; w is its
// present work.
func (m *Monitor) Check(now time.Duration, brought uint64, w Work) CoreState {
	gap := now - m.last
	if m.last = now; gap > MaxGap {
		gap = 0
	}
	if !m.cold {
		m.slack -= (m.slack - 1) * float64(gap) / float64(forget)
	}
	progressed := brought != m.brought
	m.brought = brought
	if m.state == Hung {
		return Hung
	}
	switch {
	case progressed && m.cold:
		m.cold, m.slack = false, 1
	case progressed && m.expected >= minLearnt:
		m.slack = min(max(m.slack, float64(m.pause+gap)/float64(m.expected)), maxSlack)
	}
	if m.pause += gap; progressed || w.Idle() {
		m.pause = 0
	}
	m.expected, m.transferring = time.Duration(Predict(m.cost, w)*float64(time.Second)), w.Transferring
	for len(m.givenUp) > 0 && now-m.givenUp[0] > givenUpWindow {
		m.givenUp = m.givenUp[1:]
	}
	switch limit := m.Limit(); {
	case m.pause > limit, len(m.givenUp) >= givenUpLimit:
		m.state = Hung
	case m.pause > limit/2:
		m.state = Quiet
	default:
		m.state = Progressing
	}
	return m.state
}

// Limit returns the pause after which the engine is hung, as of the last Check.
func (m *Monitor) Limit() time.Duration {
	limit := time.Duration(m.slack * float64(max(m.minPause, patience*m.expected)))
	if m.transferring {
		return max(limit, MinTransferPause)
	}
	return limit
}

// Pause returns for how long the engine has brought nothing although it has work.
func (m *Monitor) Pause() time.Duration { return m.pause }

// GiveUp takes note that a stream was given up at now because it paused although the engine
// had room for it.
func (m *Monitor) GiveUp(now time.Duration) { m.givenUp = append(m.givenUp, now) }

// Resume ends the verdict that the engine is hung: it has answered a request.
func (m *Monitor) Resume() {
	if m.state == Hung {
		m.state, m.pause, m.givenUp = Progressing, 0, nil
		m.slack = min(2*m.slack, maxSlack)
	}
}

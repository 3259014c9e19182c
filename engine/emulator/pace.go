package emulator

import "time"

// Pace is how an engine has kept to the schedule of its profile since it began to run. A machine
// that is short of CPU delivers the tokens of an iteration after the time at which the profile
// says that it ends.
type Pace struct {
	Iterations int64
	Scheduled  time.Duration // of all iterations, in wall time
	Late       time.Duration // by which iterations were delivered too late, summed up, in wall time
}

// Add returns the sum of the paces of several engines.
func (p Pace) Add(o Pace) Pace {
	return Pace{p.Iterations + o.Iterations, p.Scheduled + o.Scheduled, p.Late + o.Late}
}

// Since returns the pace since an earlier reading.
func (p Pace) Since(before Pace) Pace {
	return Pace{p.Iterations - before.Iterations, p.Scheduled - before.Scheduled, p.Late - before.Late}
}

// Lateness is the mean delay of an iteration as a share of its length: 0 is a machine that keeps
// up, and 1 one that delivers every token an iteration late. It is 0 before the first iteration.
func (p Pace) Lateness() float64 {
	if p.Scheduled <= 0 {
		return 0
	}
	return float64(p.Late) / float64(p.Scheduled)
}

// Pace returns the engine's pace. It may be called at any time.
func (e *Engine) Pace() Pace {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pace
}

// recordPace records an iteration that is delivered now.
func (e *Engine) recordPace(seconds float64, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pace = e.pace.Add(Pace{1, time.Duration(seconds * float64(time.Second)), max(0, now.Sub(e.due))})
}

package reports

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// recordLength is how far back a group's record goes.
	recordLength = time.Minute
	// sampleLength is the time that one sample covers.
	sampleLength = 100 * time.Millisecond
	maxSamples   = int(recordLength / sampleLength)
)

// Thresholds of Judge. A few failures prove nothing, because requests also fail for
// other reasons; a change that breaks requests breaks many.
const (
	// minEnded is how many requests must have ended since the change.
	minEnded = 20
	// margin is by how much the share of failures must exceed the usual one.
	margin = 0.02
	// sigmas is the confidence of Wilson's interval: one verdict in a thousand is wrong
	// by chance.
	sigmas = 3.1
	// minExpected is how many requests should have arrived before their absence proves
	// anything.
	minExpected = 50
	// minBefore is the shortest time before the change from which the usual rate can be
	// derived.
	minBefore = 5 * time.Second
)

// sample counts the requests that succeeded, failed and began at the replicas in a
// short time, according to the reports.
type sample struct {
	at                      time.Time
	success, errors, issued uint64
}

// record is the recent samples of a group of nodes, oldest first.
type record struct{ samples []sample }

func (r *record) add(now time.Time, s sample) {
	if n := len(r.samples); n > 0 && now.Sub(r.samples[n-1].at) < sampleLength {
		last := &r.samples[n-1]
		last.success += s.success
		last.errors += s.errors
		last.issued += s.issued
		return
	}
	s.at = now
	r.samples = append(r.samples, s)
	r.trim(now)
}

// trim removes old samples and reports whether none is left.
func (r *record) trim(now time.Time) bool {
	i := 0
	for i < len(r.samples) && (now.Sub(r.samples[i].at) > recordLength || len(r.samples)-i > maxSamples) {
		i++
	}
	r.samples = slices.Delete(r.samples, 0, i)
	return len(r.samples) == 0
}

// outcome sums a record over a span of time.
type outcome struct {
	ended, failed, issued float64
	first                 time.Time // of its samples; zero: none
}

// between sums the samples of [from, to).
func (r *record) between(from, to time.Time) (f outcome) {
	for _, s := range r.samples {
		if s.at.Before(from) || !s.at.Before(to) {
			continue
		}
		if f.first.IsZero() {
			f.first = s.at
		}
		f.ended += float64(s.success + s.errors)
		f.failed += float64(s.errors)
		f.issued += float64(s.issued)
	}
	return f
}

func (f outcome) plus(g outcome) outcome {
	return outcome{ended: f.ended + g.ended, failed: f.failed + g.failed, issued: f.issued + g.issued}
}

// share returns the share of failures; 0 when nothing has ended.
func (f outcome) share() float64 {
	if f.ended == 0 {
		return 0
	}
	return f.failed / f.ended
}

// lowerBound returns the lower end of Wilson's interval of the share of failures.
func (f outcome) lowerBound() float64 {
	if f.ended == 0 {
		return 0
	}
	const z2 = sigmas * sigmas
	p, n := f.share(), f.ended
	spread := sigmas * math.Sqrt(float64(p*(1-p)/n)+float64(z2/(4*n*n)))
	return max((p+float64(z2/(2*n))-spread)/(1+float64(z2/n)), 0)
}

// Judge reports whether the requests of a group of nodes fare worse since a change, and
// why: more of them fail than before the change, and than those of the other groups
// now, by more than chance explains; or requests that used to arrive no longer reach a
// replica, while those of other groups do. Judge looks back a minute. It may be called
// any number of times; a result of false proves nothing.
func (b *Book) Judge(now time.Time, group string, since time.Time) (bad bool, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.groups[group]
	if own == nil {
		return false, ""
	}
	var others, othersBefore outcome
	for name, r := range b.groups {
		if name != group {
			others = others.plus(r.between(since, now.Add(1)))
			othersBefore = othersBefore.plus(r.between(time.Time{}, since))
		}
	}
	before, after := own.between(time.Time{}, since), own.between(since, now.Add(1))
	if why = moreFailures(before, after, others); why == "" {
		why = requestsStopped(before, after, othersBefore, others, since, now.Sub(since)-2*b.interval)
	}
	return why != "", why
}

// moreFailures returns why more requests fail than before and elsewhere, or "".
func moreFailures(before, after, others outcome) string {
	if after.ended < minEnded {
		return ""
	}
	norm := before.share()
	if others.ended >= minEnded {
		norm = max(norm, others.share())
	}
	if after.lowerBound() <= norm+margin {
		return ""
	}
	return fmt.Sprintf("%.0f of %.0f requests failed, usually %.1f %% do", after.failed, after.ended, 100*norm)
}

// requestsStopped returns why requests no longer arrive, or "". lasted is the time
// since the change that reports can cover.
func requestsStopped(before, after, othersBefore, others outcome, since time.Time, lasted time.Duration) string {
	span := since.Sub(before.first)
	if before.first.IsZero() || span < minBefore || lasted <= 0 || after.issued > 0 || after.ended > 0 {
		return ""
	}
	due := before.issued * lasted.Seconds() / span.Seconds()
	elsewhere := othersBefore.issued * lasted.Seconds() / span.Seconds()
	if after.first.IsZero() || due < minExpected || elsewhere < minEnded || others.issued < elsewhere/2 {
		return ""
	}
	return fmt.Sprintf("none of %.0f expected requests has reached a replica", due)
}

// Outcome counts ended requests.
type Outcome struct {
	Ended  uint64
	Failed uint64 // those of them with a status of 5xx or a broken connection
}

// Outcomes counts the requests that ended in the last minute, by group.
func (b *Book) Outcomes(now time.Time) map[string]Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]Outcome, len(b.groups))
	for name, r := range b.groups {
		f := r.between(now.Add(-recordLength), now.Add(1))
		out[name] = Outcome{Ended: uint64(f.ended), Failed: uint64(f.failed)}
	}
	return out
}

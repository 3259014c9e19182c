package lrs

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// past is how far back a group's record goes.
	past = time.Minute
	// grain is the time that one sample covers.
	grain      = 100 * time.Millisecond
	maxSamples = int(past / grain)
)

// The verdict on a group. Requests fail for reasons of their own, so a few prove
// nothing; and a change that breaks requests breaks many.
const (
	// least is how many requests must have ended since the change.
	least = 20
	// margin is what the share of failures must exceed the usual one by.
	margin = 0.02
	// sigmas is the confidence of that, as Wilson's bound has it: one verdict in
	// a thousand is wrong by chance.
	sigmas = 3.1
	// expected is how many requests should have come, before their absence tells
	// anything.
	expected = 50
	// usual is the least time from which the usual rate is known.
	usual = 5 * time.Second
)

// sample is what ended, failed and began at the replicas, by the reports of a
// short time.
type sample struct {
	at                      time.Time
	success, errors, issued uint64
}

// record is how the nodes of a group have fared lately, oldest first.
type record struct{ samples []sample }

func (r *record) add(now time.Time, s sample) {
	if n := len(r.samples); n > 0 && now.Sub(r.samples[n-1].at) < grain {
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

// trim forgets what is too old and reports whether nothing is left.
func (r *record) trim(now time.Time) bool {
	i := 0
	for i < len(r.samples) && (now.Sub(r.samples[i].at) > past || len(r.samples)-i > maxSamples) {
		i++
	}
	r.samples = slices.Delete(r.samples, 0, i)
	return len(r.samples) == 0
}

// fared is what a record says of a time.
type fared struct {
	ended, failed, issued float64
	first                 time.Time // of its samples; zero: none
}

// between sums the samples of [from, to).
func (r *record) between(from, to time.Time) (f fared) {
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

func (f fared) plus(g fared) fared {
	return fared{ended: f.ended + g.ended, failed: f.failed + g.failed, issued: f.issued + g.issued}
}

// share is the share of failures; 0 when nothing has ended.
func (f fared) share() float64 {
	if f.ended == 0 {
		return 0
	}
	return f.failed / f.ended
}

// surely is the lower end of Wilson's interval of the share of failures.
func (f fared) surely() float64 {
	if f.ended == 0 {
		return 0
	}
	const z2 = sigmas * sigmas
	p, n := f.share(), f.ended
	spread := sigmas * math.Sqrt(float64(p*(1-p)/n)+float64(z2/(4*n*n)))
	return max((p+float64(z2/(2*n))-spread)/(1+float64(z2/n)), 0)
}

// Judge says whether the nodes of a group have fared worse since a change, and
// why it thinks so: more of their requests fail than before it, and than those
// of the other groups now, by more than chance explains; or requests that used
// to come have stopped reaching a replica while other groups' go on. Judge looks
// back a minute. It is safe to ask again and again; an answer of no is no proof.
func (b *Book) Judge(now time.Time, group string, since time.Time) (bad bool, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.groups[group]
	if own == nil {
		return false, ""
	}
	var others, othersBefore fared
	for name, r := range b.groups {
		if name != group {
			others = others.plus(r.between(since, now.Add(1)))
			othersBefore = othersBefore.plus(r.between(time.Time{}, since))
		}
	}
	before, after := own.between(time.Time{}, since), own.between(since, now.Add(1))
	if why = worse(before, after, others); why == "" {
		why = vanished(before, after, othersBefore, others, since, now.Sub(since)-2*b.interval)
	}
	return why != "", why
}

// worse says why more requests fail than before and elsewhere, or "".
func worse(before, after, others fared) string {
	if after.ended < least {
		return ""
	}
	norm := before.share()
	if others.ended >= least {
		norm = max(norm, others.share())
	}
	if after.surely() <= norm+margin {
		return ""
	}
	return fmt.Sprintf("%.0f of %.0f requests failed, usual are %.1f %%", after.failed, after.ended, 100*norm)
}

// vanished says why requests have stopped, or "". lasted is how long reports can
// have told of it.
func vanished(before, after, othersBefore, others fared, since time.Time, lasted time.Duration) string {
	span := since.Sub(before.first)
	if before.first.IsZero() || span < usual || lasted <= 0 || after.issued > 0 || after.ended > 0 {
		return ""
	}
	due := before.issued * lasted.Seconds() / span.Seconds()
	elsewhere := othersBefore.issued * lasted.Seconds() / span.Seconds()
	if after.first.IsZero() || due < expected || elsewhere < least || others.issued < elsewhere/2 {
		return ""
	}
	return fmt.Sprintf("none of %.0f expected requests has reached a replica", due)
}

// Outcome is what became of requests.
type Outcome struct {
	Ended  uint64
	Failed uint64 // of those: answered 5xx, or cut
}

// Outcomes sums what became of the last minute's requests, by group.
func (b *Book) Outcomes(now time.Time) map[string]Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]Outcome, len(b.groups))
	for name, r := range b.groups {
		f := r.between(now.Add(-past), now.Add(1))
		out[name] = Outcome{Ended: uint64(f.ended), Failed: uint64(f.failed)}
	}
	return out
}

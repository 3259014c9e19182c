package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// moveLog is the last moves of a fleet, and sums over all that ended. It is
// not safe for concurrent use, and reads no clock.
//
// Invariants: at most maxLog moves, each once; a final state is never replaced;
// a move is counted when it is first told as ended.
type moveLog struct {
	list   []*Move // in the order in which they were first told
	byID   map[string]*Move
	totals map[MoveKind]*MoveTotal
}

// maxLog bounds the moves that are remembered.
const maxLog = 512

// MoveKind is what ended moves are counted by. Words that are not known are
// "other", so that no report can make new ones.
type MoveKind struct{ Cause, Way, Result string }

// MoveTotal sums over the moves of one kind that have ended.
type MoveTotal struct {
	MoveKind
	Count uint64
	Bytes float64
	Stall Histogram // seconds; of moves that were done
}

// Histogram counts values by upper bound, each in every bucket that it fits
// into.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets [len(StallBounds)]uint64
}

// StallBounds are the upper bounds of the stall histogram, in seconds.
var StallBounds = [...]float64{0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

func (h *Histogram) observe(x float64) {
	h.Count++
	h.Sum += x
	for i, bound := range StallBounds {
		if x <= bound {
			h.Buckets[i]++
		}
	}
}

// The words of moves that have a count of their own.
var (
	knownCauses = []string{"growth", "outlier", "drain", "spill", "engine lost"}
	knownWays   = []string{"live", "reprompt", "handoff"}
)

// known returns the word, or "other".
func known(list []string, word string) string {
	if slices.Contains(list, word) {
		return word
	}
	return "other"
}

// take merges what was told at now: a later state replaces the one before.
func (l *moveLog) take(now time.Time, moves []Move) {
	for _, m := range moves {
		m.Told = now
		old := l.byID[m.ID]
		switch {
		case old == nil:
			old = l.add(m)
		case old.Ended():
			continue
		default:
			*old = m
		}
		if old.Ended() {
			l.count(m)
		}
	}
}

// add remembers a new move in place of the oldest.
func (l *moveLog) add(m Move) *Move {
	if l.byID == nil {
		l.byID, l.totals = make(map[string]*Move), make(map[MoveKind]*MoveTotal)
	}
	if len(l.list) == maxLog {
		delete(l.byID, l.list[0].ID)
		l.list = slices.Delete(l.list, 0, 1)
	}
	l.list = append(l.list, &m)
	l.byID[m.ID] = &m
	return &m
}

func (l *moveLog) count(m Move) {
	kind := MoveKind{known(knownCauses, m.Cause), known(knownWays, m.Way), m.State}
	t := l.totals[kind]
	if t == nil {
		t = &MoveTotal{MoveKind: kind}
		l.totals[kind] = t
	}
	t.Count++
	t.Bytes += float64(m.Bytes)
	if m.State == MoveDone {
		t.Stall.observe(m.Stall)
	}
}

// newest returns copies of up to limit moves that were told after since, those
// first that were first told last.
func (l *moveLog) newest(since time.Time, limit int) []Move {
	out := make([]Move, 0, min(limit, len(l.list)))
	for i := len(l.list) - 1; i >= 0 && len(out) < limit; i-- {
		if l.list[i].Told.After(since) {
			out = append(out, *l.list[i])
		}
	}
	return out
}

// running counts the moves that were told since and have not ended.
func (l *moveLog) running(since time.Time) (n int) {
	for _, m := range l.list {
		if !m.Ended() && m.Told.After(since) {
			n++
		}
	}
	return n
}

// sums copies the totals, in a fixed order.
func (l *moveLog) sums() []MoveTotal {
	var out []MoveTotal
	for t := range maps.Values(l.totals) {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b MoveTotal) int {
		return cmp.Or(cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Way, b.Way), cmp.Compare(a.Result, b.Result))
	})
	return out
}

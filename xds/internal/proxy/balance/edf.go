package balance

import "container/heap"

// schedule is an earliest-deadline-first queue: Envoy's weighted round robin. A host of
// weight w is due every 1/w, so any window of picks has each host in proportion to its
// weight, within one pick.
type schedule struct {
	now   float64
	queue edfQueue
	seq   uint64
}

type edfEntry struct {
	host *Host
	step float64 // 1/weight
	due  float64
	seq  uint64 // first in, first out among equals
}

// add adds a host with a phase in (0, 1]: the remaining part of its first step.
func (s *schedule) add(h *Host, weight, phase float64) {
	s.seq++
	s.queue = append(s.queue, edfEntry{host: h, step: 1 / weight, due: phase / weight, seq: s.seq})
}

// init orders the queue after the last add.
func (s *schedule) init() { heap.Init(&s.queue) }

// pick returns the host that is due, nil when there is none.
func (s *schedule) pick() *Host {
	if len(s.queue) == 0 {
		return nil
	}
	e := &s.queue[0]
	h := e.host
	s.now = e.due
	e.due += e.step
	s.seq++
	e.seq = s.seq
	heap.Fix(&s.queue, 0)
	return h
}

// phases stores how far each host is from its turn, for the next schedule.
func (s *schedule) phases(into map[*Host]float64) {
	for _, e := range s.queue {
		into[e.host] = min(max((e.due-s.now)/e.step, 0), 1)
	}
}

type edfQueue []edfEntry

func (q edfQueue) Len() int      { return len(q) }
func (q edfQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q edfQueue) Less(i, j int) bool {
	if q[i].due != q[j].due {
		return q[i].due < q[j].due
	}
	return q[i].seq < q[j].seq
}

// Push and Pop are not used: entries are added before init and never leave.
func (q *edfQueue) Push(x any) { *q = append(*q, x.(edfEntry)) }
func (q *edfQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

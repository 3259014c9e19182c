package sim

import "time"

// kind is what happens at an event.
type kind uint8

const (
	arrival     kind = iota // the next request of the source is due
	iteration               // a replica's iteration ends
	report                  // the replicas measure their loads
	reported                // the loads reach the proxies
	inspected               // Config.Inspect is due
	fault                   // a fault begins or ends, or is noticed
	scan                    // a front end looks for requests to sell
	summary                 // a front end sends its load to others
	message                 // of the market, arrives
	deadline                // of a front end's market
	copied                  // a round of a transfer has ended
	planTick                // of the control plane
	pulled                  // a prefix has been copied
	arrivalsDue             // a replica sends front ends what it has accepted
	rebalance               // a central scheduler looks for requests to move
)

// event is something that happens at a time.
type event struct {
	at    time.Duration
	order uint64 // of being scheduled: decides between equal times
	index int32  // of the replica or the fault
	kind  kind
	life  uint32 // of the replica: an iteration of an earlier life does not happen
	arg   any    // *bidask.Message, *transfer or *pull
}

// queue is a binary heap of events. container/heap would allocate for each.
type queue struct {
	events []event
	order  uint64
}

func (q *queue) push(e event) {
	q.order++
	e.order = q.order
	q.events = append(q.events, e)
	i := len(q.events) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !before(&e, &q.events[up]) {
			break
		}
		q.events[i] = q.events[up]
		i = up
	}
	q.events[i] = e
}

// pop returns the first event; false if there is none.
func (q *queue) pop() (event, bool) {
	if len(q.events) == 0 {
		return event{}, false
	}
	first, last := q.events[0], q.events[len(q.events)-1]
	q.events[len(q.events)-1] = event{}
	q.events = q.events[:len(q.events)-1]
	if n := len(q.events); n > 0 {
		i := 0
		for {
			down := 2*i + 1
			if down >= n {
				break
			}
			if down+1 < n && before(&q.events[down+1], &q.events[down]) {
				down++
			}
			if !before(&q.events[down], &last) {
				break
			}
			q.events[i] = q.events[down]
			i = down
		}
		q.events[i] = last
	}
	return first, true
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

package move

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// results keeps the last messages of migrations until they expire, and at most maxResults of them: the
// oldest is removed first.
type results struct {
	values map[bidask.Deal]result
	order  []bidask.Deal // by first put
}

type result struct {
	message Message
	until   policies.Micros
}

// put stores a message until a time.
func (r *results) put(d bidask.Deal, m Message, until policies.Micros) {
	if r.values == nil {
		r.values = map[bidask.Deal]result{}
	}
	if _, ok := r.values[d]; !ok {
		r.order = append(r.order, d)
	}
	r.values[d] = result{m, until}
}

func (r *results) get(d bidask.Deal) (Message, bool) {
	v, ok := r.values[d]
	return v.message, ok
}

// expire removes expired messages. One that was put again may delay those after it.
func (r *results) expire(now policies.Micros) {
	n := 0
	for n < len(r.order) && (r.values[r.order[n]].until <= now || len(r.order)-n > maxResults) {
		delete(r.values, r.order[n])
		n++
	}
	if r.order = r.order[n:]; len(r.order) == 0 {
		r.order = nil
	}
}

package move

import "github.com/cascadeinfer/cascade/policies"

// expiringMap keeps values until they expire, and at most maxResults of them: the
// oldest is removed first.
type expiringMap[K comparable, V any] struct {
	values map[K]expiringValue[V]
	order  []K // by first put
}

type expiringValue[V any] struct {
	value V
	until policies.Micros
}

// put stores v under k until a time.
func (m *expiringMap[K, V]) put(k K, v V, until policies.Micros) {
	if m.values == nil {
		m.values = map[K]expiringValue[V]{}
	}
	if _, ok := m.values[k]; !ok {
		m.order = append(m.order, k)
	}
	m.values[k] = expiringValue[V]{v, until}
}

func (m *expiringMap[K, V]) get(k K) (V, bool) {
	r, ok := m.values[k]
	return r.value, ok
}

// expire removes expired values. A value that was put again may delay those after it.
func (m *expiringMap[K, V]) expire(now policies.Micros) {
	n := 0
	for n < len(m.order) && (m.values[m.order[n]].until <= now || len(m.order)-n > maxResults) {
		delete(m.values, m.order[n])
		n++
	}
	if m.order = m.order[n:]; len(m.order) == 0 {
		m.order = nil
	}
}

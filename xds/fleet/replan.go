package fleet

import "time"

type decider struct{}

func newDecider(Rules) decider            { return decider{} }
func (decider) adopted(time.Time, *model) {}

func (s *State) replan(now time.Time, m *model) (Change, bool) {
	m.next = now.Add(s.rules.Period)
	members := s.members(m)
	return s.change(now, m, s.mended(m, members), "replicas changed")
}

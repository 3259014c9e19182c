package session

// migrationLegOpened makes the stream go on with the migration's leg, whose first
// token is the one after the frozen ids. A leg that comes too late is closed.
func (m *Machine) migrationLegOpened(ev *Event) {
	if m.state != Frozen || m.migration.number != ev.Migration {
		m.do(Action{Kind: Leave, Leg: ev.Leg, Detail: &Detail{Cached: -1}})
		return
	}
	if m.splices == 0 {
		m.cached = ev.Cached
	}
	m.replaceLeg(ev, ev.Cached)
	m.epoch++
	m.endMigration(nil)
}

// replaceLeg makes the event's leg the present one. cached is what Leave says of
// the former one.
func (m *Machine) replaceLeg(ev *Event, cached int) {
	m.do(Action{Kind: Leave, Leg: m.leg, Detail: &Detail{Cached: cached}})
	m.leg, m.first, m.holder, m.fingerprint = ev.Leg, ev.Chunk, ev.Replica, ev.Fingerprint
	m.lost, m.failure = nil, nil
	m.held, m.heldBytes = nil, 0
	m.splices++
}

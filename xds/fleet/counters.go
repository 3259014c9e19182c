package fleet

// Counters stores the counters of a fleet so that they survive restarts. It is used by
// one goroutine at a time.
type Counters interface {
	// Load returns what was written last, or nil if nothing was.
	Load() ([]byte, error)
	// Save replaces the content atomically: after a crash Load returns either the old
	// or the new content.
	// It may skip what comes too soon after what it has written.
	Save(data []byte) error
	// SaveLast is Save before the process ends: it skips nothing.
	SaveLast(data []byte) error
}

// noCounters keep nothing.
type noCounters struct{}

func (noCounters) Load() ([]byte, error) { return nil, nil }
func (noCounters) Save([]byte) error     { return nil }
func (noCounters) SaveLast([]byte) error { return nil }

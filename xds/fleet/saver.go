package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
)

// saver encodes and writes the counters in a goroutine of its own, so that neither a large
// fleet nor a slow disk blocks the loop. A write that is due while another is in progress is skipped.
type saver struct {
	fleet *Fleet
	work  chan fleetstate.Counters
	last  fleetstate.Counters // written last, after work is closed
	done  chan struct{}
}

// lastSaveTimeout bounds the wait for the last write.
const lastSaveTimeout = 5 * time.Second

func newSaver(f *Fleet) *saver {
	s := &saver{fleet: f, work: make(chan fleetstate.Counters, 1), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *saver) run() {
	defer close(s.done)
	for c := range s.work {
		s.write(c, s.fleet.cfg.Counters.Save)
	}
	s.write(s.last, s.fleet.cfg.Counters.SaveLast)
}

func (s *saver) write(c fleetstate.Counters, save func([]byte) error) {
	data, err := c.Encode()
	if err == nil {
		err = save(data)
	}
	s.fleet.NoteStore(StoreCounters, err)
}

// save passes the present counters to the goroutine. It is called only by the loop.
func (s *saver) save(now time.Time) {
	select {
	case s.work <- s.fleet.state.Counters(now):
	default:
		s.fleet.NoteStore(StoreCounters, errSkipped)
	}
}

// stop writes the counters a last time, after a write that is in progress has ended. A write
// that hangs is abandoned after lastSaveTimeout, with its goroutine: the process is to end.
func (s *saver) stop() {
	s.last = s.fleet.state.Counters(time.Now())
	close(s.work)
	select {
	case <-s.done:
	case <-time.After(lastSaveTimeout):
		s.fleet.log.Warn("counters not saved: the last write did not return", "timeout", lastSaveTimeout)
	}
}

package fleet

import "time"

// saver writes the counters in a goroutine of its own, so that a slow disk does not
// block the loop. A write that is due while another is in progress is skipped.
type saver struct {
	fleet *Fleet
	work  chan []byte
	last  []byte // written last, after work is closed; nil for nothing
	done  chan struct{}
}

// lastSaveTimeout bounds the wait for the last write.
const lastSaveTimeout = 5 * time.Second

func newSaver(f *Fleet) *saver {
	s := &saver{fleet: f, work: make(chan []byte, 1), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *saver) run() {
	defer close(s.done)
	for data := range s.work {
		s.fleet.NoteStore(StoreCounters, s.fleet.cfg.Counters.Save(data))
	}
	if s.last != nil {
		s.fleet.NoteStore(StoreCounters, s.fleet.cfg.Counters.SaveLast(s.last))
	}
}

// save encodes the present counters and passes them to the goroutine. It is called only
// by the loop.
func (s *saver) save(now time.Time) {
	if data := s.encode(now); data != nil {
		select {
		case s.work <- data:
		default:
			s.fleet.NoteStore(StoreCounters, errSkipped)
		}
	}
}

func (s *saver) encode(now time.Time) []byte {
	data, err := s.fleet.state.EncodeCounters(now)
	if err != nil {
		s.fleet.log.Warn("counters not saved", "error", err)
		return nil
	}
	return data
}

// stop writes the counters a last time, after a write that is in progress has ended. A write
// that hangs is abandoned after lastSaveTimeout, with its goroutine: the process is to end.
func (s *saver) stop() {
	s.last = s.encode(time.Now())
	close(s.work)
	select {
	case <-s.done:
	case <-time.After(lastSaveTimeout):
		s.fleet.log.Warn("counters not saved: the last write did not return", "timeout", lastSaveTimeout)
	}
}

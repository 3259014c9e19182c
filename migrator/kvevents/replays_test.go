package kvevents_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/migrator/kvevents"
)

// TestReplayFails checks that replays without an end and without an answer end, are asked for
// again, and at last given up.
func TestReplayFails(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next, e.cutOff = 8, 3
		e.connect()
		if st := s.Status(); st.Live || st.Batches != 3 { // three answers, no end
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		e.mu.Lock()
		if len(e.asked) < 3 || e.asked[0] != 0 || e.asked[1] != 3 || e.asked[2] != 6 {
			t.Errorf("asked for %v", e.asked)
		}
		e.silent, e.asked = true, nil
		e.mu.Unlock()
		e.send(1, true)
		e.send(1, false)
		if e.next != 10 {
			t.Fatal(e.next)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Lost != 0 {
			t.Errorf("given up too early: %+v", st)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.Status(); st.Lost != 1 || !st.Live || st.Failed < 4 {
			t.Errorf("%+v", st)
		}
	})
}

// TestPlainReplay checks that the replays of engines that name no topic in them are read.
func TestPlainReplay(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next, e.plain = 5, true
		e.connect()
		check(t, e, x, s, 0, true)
		e.send(2, true)
		e.send(1, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		if st := s.Status(); st.Rejected != 0 || st.Failed != 0 || st.Lost != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestProbeHangs checks that batches are applied as they come while the engine does not answer whether one was lost.
func TestProbeHangs(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(2, false)
		e.mu.Lock()
		e.silent = true
		e.mu.Unlock()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Replays != 2 {
			t.Errorf("no probe: %+v", st)
		}
		for range 20 {
			e.send(1, false)
			check(t, e, x, s, 0, true)
			time.Sleep(3 * time.Second)
		}
		if st := s.Status(); st.Failed == 0 || st.Lost != 0 || len(x.live) != 1 {
			t.Errorf("%+v, live %v", st, x.live)
		}
	})
}

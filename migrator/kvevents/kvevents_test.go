package kvevents_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/zmtp"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSubscriber goes through what happens to engines: a late start, losses, restarts, a lost
// tail.
func TestSubscriber(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next = 5 // published before the Subscriber began
		e.connect()
		check(t, e, x, s, 0, true)
		e.send(3, false)
		check(t, e, x, s, 0, true)
		e.send(2, true)
		e.send(1, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		if st := s.Status(); st.Gaps != 1 || st.Replays != 2 || st.Lost != 0 || st.Batches != 11 {
			t.Errorf("%+v", st)
		}
		e.send(4, true) // the tail
		time.Sleep(6 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)

		e.restart()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		e.send(3, false)
		check(t, e, x, s, 0, true)
		e.kept = 2
		e.send(5, true)
		e.send(1, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Lost != 4 || st.Connections != 2 {
			t.Errorf("%+v", st)
		}
		e.conn.Close()
		synctest.Wait()
		if st := s.Status(); st.Connected || st.Live {
			t.Errorf("after the engine went: %+v", st)
		}
	})
}

// TestLateStart checks that an engine that no longer has its first batches is followed from
// the oldest one on.
func TestLateStart(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next, e.kept = 50, 10
		e.connect()
		e.send(2, false)
		check(t, e, x, s, 40, true)
	})
}

// TestConfig checks that incomplete configurations and those beyond loopback are refused.
func TestConfig(t *testing.T) {
	x := newIndex()
	for want, c := range map[string]kvevents.Config{
		"set one of":        {Index: x, Model: "m"},
		"set one of ":       {Index: x, Model: "m", Listen: "127.0.0.1:1", Dial: "127.0.0.1:1"},
		"must be a loop":    {Index: x, Model: "m", Listen: "0.0.0.0:5557"},
		"must be a loopb":   {Index: x, Model: "m", Dial: "10.0.0.1:5557"},
		"Replay: \"local":   {Index: x, Model: "m", Dial: "[::1]:5557", Replay: "localhost:1"},
		"Index is required": {Model: "m", Dial: "[::1]:5557"},
		"Model is required": {Index: x, Dial: "[::1]:5557"},
	} {
		if _, err := kvevents.New(c); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%v: want an error that contains %q", err, want)
		}
	}
	if _, err := kvevents.New(kvevents.Config{Index: x, Model: "m", Listen: "127.0.0.1:5557"}); err != nil {
		t.Error(err)
	}
}

// TestTakenAddress checks that a Subscriber whose address is taken, as by the process that it
// replaces, listens once it is free.
func TestTakenAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		l := testkit.NewPipeListener(live)
		s, err := kvevents.New(kvevents.Config{Listen: live.String(), Model: "m", Index: newIndex(), ListenTCP: func(context.Context, string) (net.Listener, error) {
			if attempts++; attempts < 5 {
				return nil, fmt.Errorf("address already in use")
			}
			return l, nil
		}})
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })
		time.Sleep(10 * time.Second)
		e := &engine{t: t, publish: l}
		c, err := l.Dial(t.Context())
		testkit.NoError(t, err)
		if e.conn, err = zmtp.Open(newEagerConn(c), "PUB", "SUB"); err != nil {
			t.Fatal(err)
		}
		testkit.Must(e.conn.Receive(time.Minute))
		synctest.Wait()
		if attempts != 5 || !s.Status().Connected {
			t.Errorf("%d attempts, %+v", attempts, s.Status())
		}
		cancel()
		e.conn.Close()
		done.Wait()
	})
}

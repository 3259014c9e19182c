package emulator

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// servedEngine is a replica that serves its block table, and a migrator's session with it.
type servedEngine struct {
	*Engine
	session *wire.Conn
	stop    func()
}

// serve runs a replica that serves its block table, until the end of the test.
func serve(t testing.TB, c Config) *servedEngine {
	t.Helper()
	c.Blocks = filepath.Join(t.TempDir(), "b")
	e, stop := start(t, c)
	s := &servedEngine{Engine: e}
	testkit.WaitFor(t, "the socket", func() (ok bool) {
		var err error
		s.session, err = s.open()
		return err == nil
	})
	s.stop = sync.OnceFunc(func() {
		s.session.Close()
		stop()
	})
	t.Cleanup(s.stop)
	return s
}

// open opens a session. Close ends it.
func (s *servedEngine) open() (*wire.Conn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(s.cfg.Blocks, wire.Socket), Net: "unix"})
	if err != nil {
		return nil, err
	}
	conn := wire.NewConn(c)
	err = conn.Write(wire.Frame{Hello: &wire.Hello{Version: wire.Version, Replica: "r0", Incarnation: 1}})
	if err == nil {
		_, err = conn.Read() // the welcome
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	go func() {
		defer conn.Fail()
		for {
			f, err := conn.Read()
			if err != nil {
				return
			}
			conn.Deliver(f.Answer)
		}
	}()
	return conn, nil
}

// call makes a call and returns why it was refused.
func (s *servedEngine) call(q wire.Call) error {
	return callOn(context.Background(), s.session, q)
}

func callOn(ctx context.Context, session *wire.Conn, q wire.Call) error {
	_, err := session.Call(ctx, q)
	return err
}

// code returns the code of a refusal, "" for none.
func code(err error) wire.Code {
	if r := (*wire.Refusal)(nil); errors.As(err, &r) {
		return r.Code
	}
	return ""
}

// run sends a streaming request of a leg in the background. answer receives the answer when it is
// complete; cancel disconnects the client.
func (s *servedEngine) run(t testing.TB, leg, body string) (answer <-chan *httptest.ResponseRecorder, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := post("/v1/completions", body).WithContext(ctx)
	r.Header.Set(legHeader, leg)
	out := make(chan *httptest.ResponseRecorder, 1)
	go func() { out <- serveRequest(s.Engine, r) }()
	return out, cancel
}

// table requests the block table until the leg has generated a token.
func (s *servedEngine) table(t testing.TB, leg string) (r *wire.Answer) {
	t.Helper()
	testkit.WaitFor(t, "a token of leg "+leg, func() bool {
		var err error
		r, err = s.session.Call(t.Context(), wire.Call{Op: wire.List, Leg: leg})
		if c := code(err); err != nil && c != wire.NotFound && c != wire.NotComputed {
			t.Fatal(err)
		}
		return err == nil
	})
	return r
}

// freeze freezes a leg and returns its table.
func (s *servedEngine) freeze(t testing.TB, leg string) *wire.Answer {
	t.Helper()
	r, err := s.session.Call(t.Context(), wire.Call{Op: wire.Freeze, Leg: leg})
	testkit.NoError(t, err)
	return r
}

// waitForStats waits until the counters meet a condition: the loop publishes them after it has
// answered.
func (s *servedEngine) waitForStats(t testing.TB, what string, ok func(batch.Stats) bool) {
	t.Helper()
	testkit.WaitForValue(t, what, func() batch.Stats {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.stats
	}, ok)
}

func empty(st batch.Stats) bool {
	return st.Running+st.Waiting+st.Frozen+st.UsedBlocks+st.Reserved == 0
}

const long = `{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":4000,"ignore_eos":true,"stream":true}`

// A table is returned at once, and a freeze takes effect when the iteration is over: no caller
// waits longer, and the tokens of an iteration do not appear before its time has passed.
func TestCallsAndTheIteration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		r := post("/v1/completions", long)
		r.Header.Set(legHeader, "a")
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() { defer close(returned); serveRequest(e, r.WithContext(ctx)) }()
		// A prefill of 8 tokens takes 10.8 ms, and every further token at least 11 ms.
		time.Sleep(10800*time.Microsecond + 15*time.Millisecond)
		q, ok := engineAdapter{e}.Leg("a")
		if !ok {
			t.Fatal("the leg is unknown")
		}
		do := func(when blocktable.RunPoint, f func(*batch.Scheduler)) time.Duration {
			begin := time.Now()
			testkit.NoError(t, e.do(t.Context(), when, f))
			return time.Since(begin)
		}
		var first, second batch.Table
		if took := do(blocktable.Immediately, func(s *batch.Scheduler) { first, _ = s.Table(q, 0) }); took != 0 {
			t.Errorf("the table took %v", took)
		}
		if first.Length != 10 || first.Computed != 9 {
			t.Errorf("within the third iteration: %+v", first)
		}
		took := do(blocktable.AtBoundary, func(s *batch.Scheduler) {
			if err := s.Freeze(q, 1); err != nil {
				t.Error(err)
			}
			second, _ = s.Table(q, 0)
		})
		if took <= 0 || took > 11*time.Millisecond || second.Length != 11 || second.Computed != 10 {
			t.Errorf("frozen after %v: %+v", took, second)
		}
		time.Sleep(time.Second)
		if took := do(blocktable.Immediately, func(s *batch.Scheduler) { s.Thaw(q) }); took != 0 {
			t.Errorf("the thaw took %v", took)
		}
		time.Sleep(12 * time.Millisecond)
		do(blocktable.Immediately, func(s *batch.Scheduler) { second, _ = s.Table(q, 0) })
		if second.Length != 12 {
			t.Errorf("one iteration after the thaw: %+v", second)
		}
		// A call whose context has ended is not served.
		gone, give := context.WithTimeout(t.Context(), time.Millisecond)
		defer give()
		if err := e.do(gone, blocktable.AtBoundary, func(*batch.Scheduler) { t.Error("a call runs after its caller has gone") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond)
		cancel()
		<-returned
		if _, ok := (engineAdapter{e}).Leg("a"); ok {
			t.Error("the leg outlives its client")
		}
		stop()
		if err := e.do(t.Context(), blocktable.Immediately, func(*batch.Scheduler) {}); !errors.Is(err, errStopped) {
			t.Error(err)
		}
	})
}

// When the engine ends, calls fail and none blocks.
func TestTableEndsWithTheEngine(t *testing.T) {
	s := serve(t, Config{})
	answer, _ := s.run(t, "a", long)
	s.table(t, "a")
	s.freeze(t, "a")
	s.stop()
	if w := <-answer; !strings.Contains(w.Body.String(), `{"error":`) {
		t.Errorf("the frozen request: %s", w.Body)
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Blocks, "*")); len(left) != 0 || err != nil {
		t.Errorf("left behind: %v %v", left, err)
	}
}

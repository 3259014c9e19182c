package frontend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// postSlowly sends a request and returns the answer, whose body arrives as fast as the
// caller reads it.
func (f *fleet) postSlowly(path, body string) *http.Response {
	f.t.Helper()
	here := testkit.Must(memory.dial(f.t.Context(), "tcp", f.servers[0].url))
	f.t.Cleanup(func() { here.Close() })
	go fmt.Fprintf(here, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	resp := testkit.Must(http.ReadResponse(bufio.NewReaderSize(here, 16), nil))
	return resp
}

// TestSlowReader checks that a client that does not read delays neither the
// migration of its stream nor queries about it, and that a live migration of
// tokens that the client has not got is given up.
func TestSlowReader(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		body := strings.Replace(longRequest, "70", "200", 1)
		want := f.directAnswer("/v1/completions", body)
		f.setPace(time.Millisecond)
		resp := f.postSlowly("/v1/completions", body)
		first := make([]byte, 10)
		testkit.Must(io.ReadFull(resp.Body, first))
		s := f.waitForStream(1)
		// The engine is ahead of what the client has.
		waitFor(t, func() bool {
			_, r, ok := f.findLeg(s.id)
			return ok && f.engines[0].length(r.Name) > int(s.Request().Length())
		})
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if epoch, err := f.migrateLive(soon, s.id, 1, nil); !errors.Is(err, context.DeadlineExceeded) || epoch != 3 {
			t.Errorf("a live migration ends in epoch %d with %v", epoch, err)
		}
		f.clearReservations(1)
		waitFor(t, func() bool {
			// One event is on its way to the client. The ids up to it are enough if
			// it ends a character.
			soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := f.migrateReprompt(soon, s.id, 1)
			if err != nil {
				var b [300]byte
				n, _ := resp.Body.Read(b[:])
				first = append(first, b[:n]...)
			}
			return err == nil
		})
		rest, err := io.ReadAll(resp.Body)
		if got := string(first) + string(rest); err != nil || withoutIDs(got) != withoutIDs(want) {
			t.Errorf("%v: %s", err, firstDifference(withoutIDs(got), withoutIDs(want)))
		}
		f.requireIdle()
	})
}

// TestDisconnectDuringMigration checks that a client that disconnects ends its
// stream everywhere, in every state of a migration.
func TestDisconnectDuringMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, live := range []bool{true, false} {
			f := newFleet(t, 2, nil)
			f.setPace(time.Millisecond)
			held := make(chan struct{})
			var once sync.Once
			f.engines[1].set(func(n int, r *http.Request) {
				once.Do(func() { close(held) })
				<-r.Context().Done() // the new leg never gives a token
			}, nil)
			ctx, leave := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+f.servers[0].url+"/v1/completions", strings.NewReader(longRequest))
			resp, err := f.servers[0].client.Do(req)
			testkit.NoError(t, err)
			go io.Copy(io.Discard, resp.Body)
			s := f.waitForStream(3)
			moved := make(chan error)
			go func() {
				var err error
				if live {
					_, err = f.migrateLive(t.Context(), s.id, 1, nil)
				} else {
					_, err = f.migrateReprompt(t.Context(), s.id, 1)
				}
				moved <- err
			}()
			<-held
			leave()
			if err := <-moved; err != ErrNoStream {
				t.Errorf("live %v: the migration ends with %v", live, err)
			}
			resp.Body.Close()
			f.requireIdle()
		}
	})
}

// TestStopAfterMigration checks that the end of the server reaches the leg that is the
// present one by then, and its client.
func TestStopAfterMigration(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		waitFor(t, func() bool { _, err := f.migrateLive(t.Context(), b.id, 1, nil); return err == nil })
		f.servers[0].stop()
		if got := <-b.got; !strings.Contains(got, errStopping.Error()) || strings.Contains(got, "[DONE]") {
			t.Errorf("the client got %s", got)
		}
		waitFor(t, func() bool { return len(f.servers[1].LocalLegs()) == 0 && f.engines[1].length(b.id+"#2") == 0 })
	})
}

// TestEndDuringMigration checks that an answer that ends while a migration waits
// is delivered, and that the migration ends.
func TestEndDuringMigration(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		held := make(chan struct{})
		f.engines[1].set(func(n int, r *http.Request) {
			close(held)
			<-r.Context().Done()
		}, nil)
		moved := make(chan error)
		go func() {
			_, err := f.migrateReprompt(t.Context(), b.id, 1)
			moved <- err
		}()
		<-held
		if err := <-moved; err != ErrNoStream {
			t.Errorf("the migration ends with %v", err)
		}
		f.requireAnswer(b)
	})
}

// TestReadLegRequest checks which header fields of a peer's request are accepted.
func TestReadLegRequest(t *testing.T) {
	good := map[string]string{ForwardHeader: "r0", RequestHeader: "r0/12", LegEpochHeader: "3", FeaturesHeader: "256",
		PromptHeader: "7", OutputHeader: "2", MigrationHeader: "r1/4"}
	header := func(change map[string]string) http.Header {
		h := http.Header{}
		for name, value := range good {
			h.Set(name, value)
		}
		for name, value := range change {
			if h.Del(name); value != "" {
				h.Set(name, value)
			}
		}
		return h
	}
	o, err := readLegRequest(0, header(nil))
	if err != nil || o.name() != "r0/12#3" || o.frontEnd != "r0" || o.request.Features != policies.BadWords>>1 ||
		o.arrival.Input != 7 || o.arrival.Output != 2 || !o.arrival.HasKV || o.reservation != "r1/4" {
		t.Errorf("%+v, %v", o, err)
	}
	// What is read is what was written.
	o.target, o.header = policies.Target{Replica: "r2", Address: "x:1"}, http.Header{"X-Request-Id": {"mine"}, "X-Cascade-Tokens": {"5"}}
	again, err := readLegRequest(0, o.headers())
	if err != nil || again.name() != o.name() || again.arrival != o.arrival || again.reservation != o.reservation || again.request != o.request {
		t.Errorf("%+v, %v", again, err)
	}
	if h := o.headers(); h.Get("X-Request-Id") != "" || h.Get("X-Cascade-Tokens") != "" {
		t.Errorf("a later leg has the fields %v", h)
	}
	first := legRequest{frontEnd: "r0", target: policies.Target{Replica: "r2", Address: "x:1", Cached: 512, Held: 4096}, header: http.Header{}}
	if o, err := readLegRequest(0, first.headers()); err != nil || o.arrival.Cached != 512 || o.held != 4096 {
		t.Errorf("a first leg: %+v, %v", o, err)
	}
	for _, bad := range []map[string]string{
		{HeldHeader: "-1"}, {HeldHeader: "4294967297"}, {CachedHeader: "x"},
		{ForwardHeader: ""}, {ForwardHeader: strings.Repeat("r", maxName+1)}, {ForwardHeader: "r1"}, {RequestHeader: "r0"},
		{RequestHeader: "r0/ 1"}, {LegEpochHeader: "0"}, {LegEpochHeader: ""}, {LegEpochHeader: "-1"}, {FeaturesHeader: "4294967296"},
		{PromptHeader: "0"}, {PromptHeader: "4294967297"}, {PromptHeader: "", MigrationHeader: ""}, {PromptHeader: "", OutputHeader: ""},
		{OutputHeader: "1e3"}, {MigrationHeader: "a\x7f"}, {RequestHeader: "", MigrationHeader: "r1/4"},
	} {
		if o, err := readLegRequest(0, header(bad)); err == nil {
			t.Errorf("%v: %+v", bad, o)
		}
	}
	if o, err := readLegRequest(0, http.Header{ForwardHeader: {"r0"}}); err != nil || o.name() != "" || o.arrival.HasKV {
		t.Errorf("a warm-up: %+v, %v", o, err)
	}
}

// FuzzReadLegRequest checks that reading what was written returns the same.
func FuzzReadLegRequest(f *testing.F) {
	f.Add("r0", "r0/12", "3", "256", "7", "2", "r1/4")
	f.Add("r0", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, forward, request, epoch, features, prompt, output, move string) {
		h := http.Header{}
		for name, value := range map[string]string{ForwardHeader: forward, RequestHeader: request, LegEpochHeader: epoch,
			FeaturesHeader: features, PromptHeader: prompt, OutputHeader: output, MigrationHeader: move} {
			h.Set(name, value)
		}
		o, err := readLegRequest(0, h)
		if err != nil {
			return
		}
		o.target, o.header = policies.Target{Replica: "r2", Address: "x:1"}, http.Header{}
		again, err := readLegRequest(0, o.headers())
		if err != nil || again.name() != o.name() || again.arrival != o.arrival || again.reservation != o.reservation || again.request != o.request {
			t.Fatalf("%+v, again %+v, %v", o, again, err)
		}
	})
}

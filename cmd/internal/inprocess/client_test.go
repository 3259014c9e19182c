package inprocess

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
)

// newSlowFleet returns a fleet of two replicas whose migrations take about half a second per 2,000
// tokens.
func newSlowFleet(t *testing.T, envoy string) *fleetHarness {
	return newMigratingFleet(t, envoy, config.MigrationLive, 2, func(f *config.Fleet) { f.Migration.LinkGbps = 1 })
}

// waitForMigration waits until a migration is in progress for which holds returns true. It reports false if
// all requests have left before it saw such a migration.
func (r *fleetHarness) waitForMigration(from string, what string, holds func(move.Migration) bool) (found move.Migration, seen bool) {
	r.T.Helper()
	r.WaitFor(what, func() bool {
		gone := len(r.fronts[from].LocalLegs()) == 0 // before reading the migrations, so that none ends in between
		for _, m := range r.daemons[from].Executor().Migrations() {
			if m.Role == "source" && m.State != "moved" && m.State != "failed" && holds(m) {
				found, seen = m, true
				return true
			}
		}
		return gone
	})
	return found, seen
}

// otherReplica returns the other one of two replicas.
func otherReplica(id string) string { return map[string]string{"r0": "r1", "r1": "r0"}[id] }

// useOnly makes all requests begin at one replica: it drains the other one.
func (r *fleetHarness) useOnly(id string) {
	r.T.Helper()
	other := otherReplica(id)
	r.Order("drain", other)
	r.WaitFor(other+" is given nothing", func() bool {
		before := r.counts()
		for range 4 {
			if got, err := r.send("/v1/completions", "", bytes.NewReader(prompt(100, 1))); err != nil || got.status != http.StatusOK {
				r.T.Fatalf("%v, status %d", err, got.status)
			}
		}
		return r.countsSince(before)[other] == 0
	})
}

// swapDrain drains one replica and undrains the other.
func (r *fleetHarness) swapDrain(from string) {
	r.T.Helper()
	r.Order("undrain", otherReplica(from))
	r.Order("drain", from)
}

// repeatUntilMigrated calls try with an output length for a stream of r0, and doubles the length until the
// stream has migrated to r1 in the meantime: on a busy host, short streams end before they migrate.
func (r *fleetHarness) repeatUntilMigrated(try func(output int)) {
	r.T.Helper()
	for output := 600; ; output *= 2 {
		r.Order("undrain", "r0")
		r.useOnly("r0")
		try(output)
		if r.tally() > 0 {
			return
		}
		if output > 20_000 {
			r.T.Fatal("it does not migrate")
		}
	}
}

// startLeaving drains r0 instead of r1, and waits until the requests on r0 begin to migrate or have
// ended.
func (r *fleetHarness) startLeaving() {
	r.T.Helper()
	r.swapDrain("r0")
	r.WaitFor("a migration, or the end of the requests", func() bool {
		return len(r.daemons["r0"].Executor().Migrations()) > 0 || len(r.fronts["r0"].LocalLegs()) == 0
	})
}

// TestClientLeaves disconnects clients in every state of their requests' migrations, and checks
// that nothing is left of the requests.
func TestClientLeaves(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newSlowFleet(t, envoy)
		states := make(map[string]int)
		from := "r0"
		for n := range 6 {
			r.useOnly(from)
			s := r.Stream(prompt(8000+n, forever))
			var m move.Migration
			for seen := false; !seen; {
				r.swapDrain(from)
				m, seen = r.waitForMigration(from, "a migration", func(m move.Migration) bool { return n%3 == 0 || m.Rounds >= n%3 || m.State == "adopted" })
				from = otherReplica(from)
			}
			states[m.State]++
			s.Leave()
			r.waitForIdle()
		}
		t.Logf("clients have left in the states %v", states)
	})
}

// TestRequestEndsWhileMigrating checks that requests that end during their migration are complete.
func TestRequestEndsWhileMigrating(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		// No migration ends while a request with this output runs.
		const output = 2000
		r := newMigratingFleet(t, envoy, config.MigrationLive, 2, func(f *config.Fleet) { f.Migration.LinkGbps = .05 })
		r.useOnly("r0")
		var all []*harness.Stream
		for n := range 4 {
			all = append(all, r.Stream(prompt(20_000+n, output)))
		}
		r.swapDrain("r0")
		if _, seen := r.waitForMigration("r0", "a migration", func(m move.Migration) bool { return m.Rounds > 0 }); !seen {
			t.Fatal("the requests are over, or elsewhere, before they migrate")
		}
		for _, s := range all {
			if err := s.Whole(); err != nil {
				t.Error(err)
			}
		}
		r.waitForIdle()
		over := 0
		_, failed := r.migrations()
		for _, m := range failed {
			if m.Failure == "request ended" {
				over++
			}
		}
		if r.tally(); over == 0 {
			t.Error("no request ended while it migrated")
		}
	})
}

// TestSlowReader has a client that reads one event, waits, and reads the next, while its request
// migrates back and forth. It receives every event.
func TestSlowReader(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 2)
		load := r.newLoad(2, 20, 200)
		r.useOnly("r0")
		body := prompt(400, 600)
		want, err := r.Oracle().Text(body)
		testkit.NoError(t, err)
		resp, err := r.open(context.Background(), "/v1/completions", "", bytes.NewReader(harness.WithStream(body)))
		testkit.NoError(t, err)
		defer resp.Body.Close()
		var e harness.Events
		n, from := 0, "r0"
		err = e.Read(slow{resp.Body}, func() {
			if n++; n%100 == 50 {
				r.swapDrain(from)
				r.WaitFor("it migrates", func() bool { return len(r.fronts[from].LocalLegs()) == 0 })
				from = otherReplica(from)
			}
		})
		load.Stop()
		load.Report()
		if err := e.Check(err, want); err != nil {
			t.Error(err)
		}
		r.tally()
	})
}

// slow reads a few bytes at a time.
type slow struct{ io.Reader }

func (s slow) Read(b []byte) (int, error) {
	time.Sleep(tick)
	return s.Reader.Read(b[:min(len(b), 200)])
}

// TestSecondRequest sends a second request on a client connection while the first one migrates.
func TestSecondRequest(t *testing.T) {
	second := func() []byte { return prompt(200, 20) }
	check := func(t *testing.T, o *harness.Oracle, what string, body []byte, text string) {
		t.Helper()
		want, err := o.Text(body)
		testkit.NoError(t, err)
		if text != want {
			t.Errorf("%s: %.80q, want %.80q", what, text, want)
		}
	}
	t.Run("HTTP/1.1", func(t *testing.T) {
		planes(t, onEnvoy, func(t *testing.T, envoy string) {
			r := newSlowFleet(t, envoy)
			o := r.Oracle()
			c, err := net.Dial("tcp", r.address)
			testkit.NoError(t, err)
			defer c.Close()
			send := func(body []byte) {
				if _, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
					t.Error(err)
				}
			}
			in := bufio.NewReader(c)
			answer := func(each func()) string {
				resp, err := http.ReadResponse(in, nil)
				testkit.NoError(t, err)
				var e harness.Events
				if err := e.Read(resp.Body, each); err != nil || !e.Done {
					t.Fatalf("%v, done %v, %s", err, e.Done, e.Failed)
				}
				return e.Text.String()
			}
			r.repeatUntilMigrated(func(output int) {
				first := prompt(8000, output)
				send(harness.WithStream(first))
				sent := false
				text := answer(func() {
					if !sent {
						sent = true
						r.startLeaving()
						send(harness.WithStream(second()))
					}
				})
				check(t, o, "the first", first, text)
				check(t, o, "the second", second(), answer(nil))
			})
		})
	})
	t.Run("h2", func(t *testing.T) {
		planes(t, onEnvoy, func(t *testing.T, envoy string) {
			r := newSlowFleet(t, envoy)
			o := r.Oracle()
			transport := h2c()
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			ask := func(body []byte, each func()) string {
				resp, err := client.Post(r.URL()+"/v1/completions", "application/json", bytes.NewReader(harness.WithStream(body)))
				if err != nil {
					t.Error(err)
					return ""
				}
				defer resp.Body.Close()
				var e harness.Events
				if err := e.Read(resp.Body, each); err != nil || !e.Done || resp.ProtoMajor != 2 {
					t.Errorf("%v, %s, done %v, %s", err, resp.Proto, e.Done, e.Failed)
				}
				return e.Text.String()
			}
			r.repeatUntilMigrated(func(output int) {
				first := prompt(8000, output)
				sent := false
				text := ask(first, func() {
					if !sent {
						sent = true
						r.startLeaving()
						check(t, o, "the second", second(), ask(second(), nil))
					}
				})
				check(t, o, "the first", first, text)
			})
		})
	})
}

// TestBoundaryHalved lowers the end of a stage below the length of many requests at once. They
// migrate a few at a time and none fails. Neither those that migrate nor those that stay wait much
// longer for their tokens than before.
func TestBoundaryHalved(t *testing.T) {
	const (
		slots  = 2
		window = 200 // at least so many events of each stream, over which the time per token is measured
		slower = 2   // how much longer it may take at p99: a migration stops a request for a few tokens
	)
	// It does not run in parallel: its streams use half a core until they have migrated.
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 4, func(f *config.Fleet) { f.Migration.MaxConcurrent, f.Speed = slots, 2 })
		r.plan(stages([]policies.Tokens{1600}, ids(0, 1), ids(2, 3))...)
		r.teachShapes()
		load := r.newLoad(3, 60, 200, 2000)
		var streams []*harness.Stream
		for n := range 10 {
			streams = append(streams, r.Stream(prompt(4000+n, forever)))
		}
		var short []*harness.Stream // the streams that stay
		for n := range 3 {
			short = append(short, r.Stream(prompt(100+n, forever)))
		}
		all := slices.Concat(streams, short)
		load.WaitForRequests(6)
		most := 0
		before := r.tally()
		first := r.moment()
		r.WaitForEvents(all, window)
		second := r.moment()
		r.write(policies.Plan{Model: llm, Stages: stages([]policies.Tokens{800}, ids(0, 1), ids(2, 3))})
		r.WaitFor("all have migrated", func() bool {
			for _, d := range r.daemons {
				s := d.Market().Status()
				if most = max(most, s.Exporting, s.Importing); s.Exporting > slots || s.Importing > slots {
					t.Fatalf("%d transfers from and %d to a replica at once, with %d slots", s.Exporting, s.Importing, slots)
				}
			}
			at := r.streamsByHolder("r0")
			for id, n := range r.streamsByHolder("r1") {
				at[id] += n
			}
			return at["r2"]+at["r3"] >= len(streams)
		})
		r.WaitForEvents(all, window)
		still, halved := perToken(first, second), perToken(second, r.moment())
		load.WaitForRequests(6)
		load.Stop()
		load.Report()
		r.RequireTexts(all)
		t.Logf("%d migrations, %d at once from or to one replica", r.tally()-before, most)
		if len(still) < len(all) || len(halved) < len(all) {
			t.Fatalf("%d and %d streams were measured, want %d", len(still), len(halved), len(all))
		}
		a, b := still[len(still)*99/100], halved[len(halved)*99/100]
		t.Logf("iterations per token: p50 %.3f and p99 %.3f before, %.3f and %.3f while the boundary was halved", still[len(still)/2], a, halved[len(halved)/2], b)
		if b > slower*a {
			t.Errorf("a token takes %.2f iterations at p99 while requests migrate, %.2f before", b, a)
		}
	})
}

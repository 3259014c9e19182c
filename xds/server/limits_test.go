package server_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/server"
)

// requireEnd checks why a stream ended.
func requireEnd(t *testing.T, c *client, code codes.Code, text string) {
	t.Helper()
	err := c.endError()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("stream ended with %v, want %v: …%s…", err, code, text)
	}
}

// TestLimits runs testdata/limits.txt, in which one node exceeds every limit, while
// another one continues.
func TestLimits(t *testing.T) {
	limits := server.Limits{FirstRequest: 5000, Request: 2000, NodeNames: 10, NodeBytes: 2500, Streams: 3, Rate: 10, Burst: 20, Nodes: 3}
	for _, scenario := range readScenarios(t, "testdata/limits.txt") {
		t.Run(scenario.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cache.New(cache.Config{})
				c.Set("", setOf(t, "cds:a=1"))
				reported := make(chan string, 2)
				s := startServer(t, server.Config{Cache: c, Limits: limits, OnRefusal: func(client, address string, why error) { reported <- why.Error() }})
				good := openStream(t, s.conn, true, "", "good")
				good.subscribe(cds)
				good.expectAck("a")
				if err := runScenario(t, scenario, "", func() subject { return subject{conn: s.conn} }); err != nil {
					t.Error(err)
				}
				if len(reported) != 1 || <-reported != s.LastRefusal().Err.Error() {
					t.Error("the refusal was not reported")
				}
				if n := s.Refused(); n != 1 || s.log.Count("\n") != 1 {
					t.Errorf("%d refused, log %s", n, s.log)
				}
				c.Set("", setOf(t, "cds:a=2"))
				good.expectAck("a")
				if err := good.endError(); err != nil {
					t.Errorf("stream of the other node ended: %v", err)
				}
			})
		})
	}
}

// TestReplies checks that a node may reply as fast as it is sent responses,
// whatever its rate limit, and that a node over its limit can return after a
// while.
func TestReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New(cache.Config{})
		s := startServer(t, server.Config{Cache: c, Limits: server.Limits{Rate: 1, Burst: 2}})
		d, w := openStream(t, s.conn, true, "", "d"), openStream(t, s.conn, false, "", "w")
		c.Set("", setOf(t, "rds:r=0"))
		d.subscribe(rds, "r")
		w.subscribe(rds, "r")
		for i := range 500 {
			d.expectAck("r")
			w.expectAck("r")
			c.Set("", setOf(t, fmt.Sprintf("rds:r=%d", i+1)))
		}
		for _, m := range d.expect("r") {
			d.nack(m)
		}
		d.expect()
		for range 2 {
			d.subscribe(rds, "r")
		}
		requireEnd(t, d, codes.ResourceExhausted, "requests a second")
		again := openStream(t, s.conn, true, "", "d")
		again.subscribe(rds, "r")
		requireEnd(t, again, codes.ResourceExhausted, "requests a second")
		if s.log.Count("\n") != 2 || s.Refused() != 2 {
			t.Errorf("log %s", s.log)
		}
		time.Sleep(61 * time.Second)
		again = openStream(t, s.conn, true, "", "d")
		again.subscribe(rds, "r")
		again.expectAck("r")
		for range 10 {
			again.subscribe(rds, "r")
		}
		requireEnd(t, again, codes.ResourceExhausted, "requests a second")
		if s.log.Count("\n") != 3 {
			t.Errorf("log %s", s.log)
		}
	})
}

// TestStreamEndReleasesLimits checks that a stream's end gives back what the
// stream used.
func TestStreamEndReleasesLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, server.Config{Limits: server.Limits{Streams: 1, NodeNames: 2, Nodes: 1}})
		for range 20 {
			c := openStream(t, s.conn, true, eds, "n")
			c.subscribe(eds, "a", "b")
			c.unsubscribe(eds, "a")
			c.subscribe(eds, "b", "c") // b counts already
			c.expect()
			testkit.NoError(t, c.endError())
			c.stream.CloseSend()
			if err := c.endError(); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute) // the node is forgotten, which makes room for another
		c := openStream(t, s.conn, true, eds, "m")
		c.subscribe(eds, "a")
		c.expect()
		testkit.NoError(t, c.endError())
	})
}

// TestSlowReader checks that a client which does not read loses its stream and
// delays no other client.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New(cache.Config{})
		c.Set("", setOf(t, "cds:a=1"))
		s := startServer(t, server.Config{Cache: c})
		stream := testkit.Must(discoveryv3.NewAggregatedDiscoveryServiceClient(s.conn).DeltaAggregatedResources(t.Context()))
		names := []string{strings.Repeat("n", 400<<10)} // the answer is as long: "there is no such name"
		send := func(node *corev3.Node) {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: eds, ResourceNamesSubscribe: names}); err != nil {
				t.Log(err)
			}
		}
		send(&corev3.Node{Id: "slow"})
		send(nil)
		send(nil)
		good := openStream(t, s.conn, true, "", "good")
		good.subscribe(cds)
		good.expectAck("a")
		time.Sleep(20 * time.Second)
		if s.Refused() != 0 {
			t.Error("stream ended too soon")
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if s.Refused() != 1 || s.log.Count("does not read") == 0 {
			t.Errorf("%d refused, log %s", s.Refused(), s.log)
		}
		c.Set("", setOf(t, "cds:a=2"))
		good.expectAck("a")
	})
}

func TestConfig(t *testing.T) {
	if _, err := server.New(server.Config{}); err == nil {
		t.Error("New accepted a configuration without a cache")
	}
	for _, l := range []server.Limits{{Rate: -1}, {FirstRequestTimeout: -1}, {SendTimeout: -time.Second}} {
		if _, err := server.New(server.Config{Cache: cache.New(cache.Config{}), Limits: l}); err == nil {
			t.Errorf("limits %+v", l)
		}
	}
}

// TestBurst checks how many requests may come at once: those of 20 s, or what an Envoy asks for.
func TestBurst(t *testing.T) {
	for rate, burst := range map[int]int{1: 32, 5: 100} {
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t, server.Config{Cache: cache.New(cache.Config{}), Limits: server.Limits{Rate: rate}})
			d := openStream(t, s.conn, true, "", "d")
			for range burst {
				d.subscribe(rds, "r")
			}
			if err := d.endError(); err != nil {
				t.Errorf("rate %d: %d requests at once: %v", rate, burst, err)
			}
			d.subscribe(rds, "r")
			requireEnd(t, d, codes.ResourceExhausted, "requests a second")
		})
	}
}

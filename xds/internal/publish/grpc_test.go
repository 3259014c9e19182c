package publish_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/grpctest"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// TestGRPC has grpc-go's own xDS client route by the length in its metadata,
// without any code of this repository on its side.
func TestGRPC(t *testing.T) {
	backends := make(map[string]*backend)
	for _, id := range []string{"a", "b", "c"} {
		backends[id] = &backend{id: id, address: grpctest.StartReplica(t, id)}
	}
	p, _ := startServices(t, "")
	p.publisher.Submit(backendView(backends, 1, []policies.Tokens{1000, 9000}, "a", "b", "c"))
	call := grpctest.Dial(t, grpctest.Bootstrap(p.address), "xds:///"+resources.GRPCListenerName("m"))
	expect := func(tokens, want string) {
		t.Helper()
		if got, err := call(tokens); err != nil || got != want {
			t.Errorf("%q tokens: served by %q, %v; want %s", tokens, got, err, want)
		}
	}
	for tokens, want := range map[string]string{
		"1": "a", "999": "a", "1000": "b", "1001": "b", "8999": "b", "9000": "c", "131072": "c",
		"9223372036854775807": "c", "": "c", "abc": "c", "-1": "c",
	} {
		expect(tokens, want)
	}
	// Plans change during calls: none fails, and every one has a stage.
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if got, err := call("1500"); err != nil || got == "" {
				done <- fmt.Errorf("served by %q: %w", got, err)
				return
			}
		}
	}()
	last := policies.Epoch(1 + testkit.Size(8, 28))
	for e := policies.Epoch(2); e <= last; e++ {
		stages := []string{"a", "b", "c"}
		if e%2 == 0 {
			stages = []string{"a b", "c"}
		}
		cuts := []policies.Tokens{1000 + policies.Tokens(e), 9000}[:len(stages)-1]
		p.publisher.Submit(backendView(backends, e, cuts, stages...))
		p.waitForCurrent(t, e, 1)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	// A gRPC client acknowledges a response when it has read it, and applies it
	// a moment later; until then its stages may still have the members of two
	// plans.
	right := 0
	for deadline := time.Now().Add(time.Minute); right < 50 && time.Now().Before(deadline); {
		below, _ := call(fmt.Sprint(999 + last))
		at, _ := call(fmt.Sprint(1000 + last))
		if right++; below != "a" || at != "b" {
			right = 0
		}
	}
	if right == 0 {
		t.Error("last plan not applied")
	}
	for _, n := range p.publisher.Status().Nodes {
		if n.NACKs > 0 {
			t.Errorf("refused: %s", n.LastError)
		}
	}
}

// TestFederation has grpc-go's own xDS client, whose default control plane is
// down, reach a model through the authority that attach adds to its bootstrap.
func TestFederation(t *testing.T) {
	for _, model := range []string{"m", "org/m 7b"} {
		t.Run(model, func(t *testing.T) {
			backends := make(map[string]*backend)
			for _, id := range []string{"a", "b"} {
				backends[id] = &backend{id: id, address: grpctest.StartReplica(t, id)}
			}
			p, _ := startServices(t, "")
			of := func(epoch policies.Epoch, cut policies.Tokens) resources.View {
				v := backendView(backends, epoch, []policies.Tokens{cut}, "a", "b")
				v.Models[0].Name, v.Plans[0].Model = model, model
				for i := range v.Endpoints {
					v.Endpoints[i].Model = model
				}
				return v
			}
			p.publisher.Submit(of(1, 1000))
			boot := testkit.Must(attach.GRPCBootstrap(attach.GRPCConfig{Control: []string{p.address}, Bootstrap: grpctest.Bootstrap(testkit.Addresses(t, 1)[0])}))
			call := grpctest.Dial(t, boot, "xds://cascade/"+model)
			for _, x := range []struct{ tokens, want string }{
				{"5", "a"}, {"0", "a"}, {"999", "a"}, {"1000", "b"}, {"", "b"}, {"abc", "b"}, {fmt.Sprint(math.MaxInt64), "b"},
			} {
				if got, err := call(x.tokens); err != nil || got != x.want {
					t.Errorf("%q tokens: served by %q, %v; want %s", x.tokens, got, err, x.want)
				}
			}
			p.waitForCurrent(t, 1, 1)
			p.publisher.Submit(of(2, 2000))
			testkit.WaitFor(t, "the new boundary", func() bool {
				got, err := call("1999")
				testkit.NoError(t, err)
				return got == "a"
			})
			if got, err := call("2000"); err != nil || got != "b" {
				t.Errorf("at the new boundary: %q, %v", got, err)
			}
			nodes := p.publisher.Status().Nodes
			if i := slices.IndexFunc(nodes, func(n publish.Node) bool { return n.NACKs > 0 }); i >= 0 || len(nodes) != 1 {
				t.Errorf("nodes: %+v", nodes)
			}
		})
	}
}

package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// generationCounter is a host that reports when it has a generation.
type generationCounter struct {
	has  chan<- lifecycle.Generation
	last lifecycle.Generation
}

func (c *generationCounter) Update(s *client.Snapshot) {
	slot := s.Slots[policyslots.ResourceName(slotKind)]
	if slot == nil {
		return
	}
	w, err := policyslots.DecodeResource(slot.Name, slot.Config)
	if err == nil && len(w.Candidates) > 0 && w.Candidates[0].Generation != c.last {
		c.last = w.Candidates[0].Generation
		c.has <- c.last
	}
}

// BenchmarkPolicyPush pushes a small module until every host has it, over real
// sockets: stored, rendered, sent, checked.
func BenchmarkPolicyPush(b *testing.B) {
	for _, hosts := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) { benchmarkPush(b, hosts) })
	}
}

func benchmarkPush(b *testing.B, hosts int) {
	replica := policies.Replica{ID: "r0", Model: "m", Address: "127.0.0.1:1", Capacity: policies.Capacity{KV: 400_000, Batch: 256}}
	c, err := New(Config{
		Rules: fastRules(), Replicas: []policies.Replica{replica}, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Settings: resources.Settings{Listen: "127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = c.Run(ctx) })
	has := make(chan lifecycle.Generation, hosts)
	for i := range hosts {
		cl, err := client.New(client.Config{
			Target: c.Addr().String(), NodeID: fmt.Sprintf("migrator/r%d", i), Cluster: resources.ObserverCluster,
			Slots: []string{policyslots.ResourceName(slotKind)}, Watcher: &generationCounter{has: has},
			CheckSlot: func(name string, typed *anypb.Any) error {
				_, err := policyslots.DecodeResource(name, typed)
				return err
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() { _ = cl.Run(ctx) })
	}
	code := make([]byte, 8<<10)
	sum := sha256.Sum256(code)
	if err := c.cfg.Modules.Put(lifecycle.Digest(sum), code); err != nil {
		b.Fatal(err)
	}
	generation := lifecycle.Native
	push := func() {
		generation++
		m := policyslots.Module{Generation: generation, Name: "p", SHA256: sum, Size: len(code), Signature: []byte("signed")}
		if err := c.slots.change(ctx, []lifecycle.Kind{slotKind}, func(s policyslots.Slot) (policyslots.Slot, error) {
			return s.Push(policyslots.Trial{Module: m, Goal: lifecycle.ToStable})
		}); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < hosts; {
			if <-has == generation {
				n++
			}
		}
	}
	push() // and wait until all are connected
	for b.Loop() {
		push()
	}
}

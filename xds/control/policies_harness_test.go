package control

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// fakeAdmitter admits modules with the signature "generation N", unless the
// test denies them.
type fakeAdmitter struct {
	mu    sync.Mutex
	asked []Push
	deny  func(Push) error
	// caveat is that of every module.
	caveat string
}

func (n *fakeAdmitter) Admit(_ context.Context, p Push) (Admitted, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, p)
	a := Admitted{Version: "1.0", SHA256: sha256.Sum256(p.Module), Signers: []string{"ops"}, Caveat: n.caveat}
	if _, err := fmt.Sscanf(string(p.Signature), "generation %d", &a.Generation); err != nil {
		return Admitted{}, errors.New("unknown signer")
	}
	a.Name = fmt.Sprintf("m%d", a.Generation)
	if n.deny != nil {
		return a, n.deny(p)
	}
	return a, nil
}

// push pushes a module.
func push(t *testing.T, c *runningControl, query string, module []byte, signature string) (int, string) {
	t.Helper()
	body := testkit.Must(json.Marshal(pushBody{Module: module, Signature: []byte(signature)}))
	return post(t, c, "/policies/push?"+query, func(r *http.Request) {
		r.Header.Set("content-type", "application/json")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	})
}

// requireOK returns the response of a command, which must succeed.
func requireOK(t *testing.T) func(int, string) Policies {
	return func(code int, body string) (p Policies) {
		t.Helper()
		if err := json.Unmarshal([]byte(body), &p); code != http.StatusOK || err != nil {
			t.Fatalf("%d: %s, %v", code, body, err)
		}
		return p
	}
}

// testHost is a migrator of a test: it follows one control plane, applies what
// its slot should run, and reports to several.
type testHost struct {
	*fakeReplica
	connection *grpc.ClientConn
	stop       func()

	mu       sync.Mutex
	want     lifecycle.SlotSpec
	version  string
	codes    map[lifecycle.Digest][]byte
	status   *api.SlotStatus
	checks   int                  // configs received
	refuse   string               // error for every config
	reject   lifecycle.Generation // this generation, in the phase rejectIn
	rejectIn string               // "" is canary, after which the fleet rolls back
}

const slotKind = "bid-select"

// startHost starts a host for a replica.
func startHost(t *testing.T, r *fakeReplica, from *runningControl, to ...*runningControl) *testHost {
	t.Helper()
	h := &testHost{fakeReplica: r, codes: make(map[lifecycle.Digest][]byte), status: &api.SlotStatus{Kind: slotKind}}
	h.report()
	conn := testkit.Must(grpc.NewClient(from.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	h.connection = conn
	cl, err := routing.New(routing.Config{
		Conn: conn, NodeID: identity.MigratorNodeID(string(r.ID)), Cluster: resources.ObserverCluster,
		Slots: []string{policyslots.ResourceName(slotKind)}, CheckSlot: h.check, Watcher: h,
	})
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = cl.Run(ctx) })
	for _, c := range append(to, from) {
		r.reportTo(ctx, t, &wg, c.Addr().String())
	}
	h.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); conn.Close() })
	t.Cleanup(h.stop)
	return h
}

func (h *testHost) check(name string, typed *anypb.Any) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks++
	if h.refuse != "" {
		return errors.New(h.refuse)
	}
	_, err := policyslots.DecodeResource(name, typed)
	return err
}

// Update implements routing.Watcher: a configuration takes effect at once.
func (h *testHost) Update(s *routing.Snapshot) {
	slot := s.Slots[policyslots.ResourceName(slotKind)]
	if slot == nil {
		return
	}
	want := testkit.Must(policyslots.DecodeResource(slot.Name, slot.Config))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == slot.Version {
		return
	}
	h.want, h.version = want, slot.Version
	h.status = &api.SlotStatus{Kind: slotKind, Floor: h.status.Floor}
	for _, c := range want.Candidates {
		h.status.Floor = max(h.status.Floor, uint64(c.Generation))
		life := &api.ModuleStatus{Generation: uint64(c.Generation), Phase: "warm", Reached: "warm", Sha256: c.SHA256[:]}
		h.status.Modules = append(h.status.Modules, life)
		switch {
		case c.Generation == h.reject:
			life.Phase, life.Reached, life.Reason = "rejected", cmp.Or(h.rejectIn, "canary"), "it trapped"
		case c.Stable || c.Goal == lifecycle.ToActive:
			h.status.Active, life.Phase, life.Reached, life.Calls = uint64(c.Generation), "active", "active", 10
		case c.Goal == lifecycle.ToCanary:
			h.status.Candidate, h.status.Permille, life.Phase, life.Reached = uint64(c.Generation), uint32(c.Permille), "canary", "canary"
		}
		h.codes[c.SHA256] = c.Module
	}
	h.report()
}

// report sets the slot's state in the reports. The host must be locked.
func (h *testHost) report() {
	h.setReport(func(m *api.LoadReport) { m.Slots = []*api.SlotStatus{proto.CloneOf(h.status)} })
}

// fetch fetches a module from the host's control plane.
func (h *testHost) fetch(t *testing.T, sum lifecycle.Digest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stream, err := api.NewModulesClient(h.connection).Fetch(ctx, &api.FetchRequest{Sha256: sum[:]})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		c, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, c.GetData()...)
	}
}

// waitFor waits until the configuration of a host's slot fits.
func (h *testHost) waitFor(t *testing.T, c *runningControl, what string, fits func(lifecycle.SlotSpec) bool) {
	t.Helper()
	waitForPolicies(t, c, string(h.ID)+": "+what, func(Policies) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return fits(h.want)
	})
}

// waitForPolicies waits until the response of /policies fits.
func waitForPolicies(t *testing.T, c *runningControl, what string, fits func(Policies) bool) Policies {
	t.Helper()
	return testkit.WaitForValue(t, what, func() Policies { return c.Policies(slotKind) }, fits)
}

// waitForOwnSlot waits until a slot of the control planes themselves fits, and returns it.
func waitForOwnSlot(t *testing.T, c *runningControl, what string, fits func(PolicySlot) bool) PolicySlot {
	t.Helper()
	p := testkit.WaitForValue(t, what, func() Policies { return c.Policies("partition") }, func(p Policies) bool {
		return len(p.Slots) == 1 && fits(p.Slots[0])
	})
	return p.Slots[0]
}

// hasGenerations reports whether a slot has these generations, stable and
// candidate; 0 for none.
func hasGenerations(stable, candidate lifecycle.Generation) func(Policies) bool {
	return func(p Policies) bool {
		if len(p.Slots) != 1 {
			return false
		}
		s := p.Slots[0]
		return (s.Stable == nil && stable == 0 || s.Stable != nil && s.Stable.Generation == stable) &&
			(s.Candidate == nil && candidate == 0 || s.Candidate != nil && s.Candidate.Generation == candidate)
	}
}

// wantsGenerations reports whether a host was sent these generations.
func wantsGenerations(generations ...lifecycle.Generation) func(lifecycle.SlotSpec) bool {
	return func(w lifecycle.SlotSpec) bool {
		var got []lifecycle.Generation
		for _, c := range w.Candidates {
			got = append(got, c.Generation)
		}
		return slices.Equal(got, generations)
	}
}

package policyhost_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/xds/control"
)

// patience is the timeout of all waits.
const patience = 2 * time.Minute

// site is an in-process fleet with modules enabled, and the key of its operator.
type site struct {
	*inprocess.Fleet
	t      *testing.T
	client *http.Client
	secret ed25519.PrivateKey
	number lifecycle.Generation // the generation of the last statement
}

// newSite runs a fleet until the test ends.
func newSite(t *testing.T) *site {
	t.Helper()
	public, secret, err := ed25519.GenerateKey(nil)
	testkit.NoError(t, err)
	f := config.Fleet{
		Speed:   10,
		Models:  []config.Model{{Name: "m", Context: 131072, Profile: "testdata/steady.json"}},
		Control: config.Control{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Proxy:   config.Proxy{Listen: "127.0.0.1:0"},
		Planner: config.Planner{Period: time.Hour},
	}
	f.Policies.Trial = config.TrialShort
	for i := range 3 {
		f.Replicas = append(f.Replicas, config.Replica{ID: fmt.Sprintf("r%d", i), Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0"})
	}
	if errs := f.Validate(); len(errs) > 0 {
		t.Fatal(errs[0])
	}
	file, err := wiring.Resolve(f, "../inprocess")
	testkit.NoError(t, err)
	file.Trusted = []ed25519.PublicKey{public}
	s := &site{t: t, secret: secret, number: 100, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	if s.Fleet, err = inprocess.New(inprocess.Config{Fleet: file, Drain: time.Second}); err != nil {
		t.Fatal(err)
	}
	testkit.Run(t, s.Run)
	t.Cleanup(s.client.CloseIdleConnections)
	ready, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.NoError(t, s.Ready(ready))
	http.DefaultClient.CloseIdleConnections()
	return s
}

// order sends a request about the slot place to the control plane.
func (s *site) order(what string, q url.Values, body []byte) (int, string) {
	s.t.Helper()
	q.Set("slot", abi.Place.String())
	req, err := http.NewRequest(http.MethodPost, s.AdminURL()+"/policies/"+what+"?"+q.Encode(), bytes.NewReader(body))
	testkit.NoError(s.t, err)
	req.Header.Set("content-type", "application/json")
	req.Header.Set(control.AdminHeader, "1")
	resp, err := s.client.Do(req)
	testkit.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.NoError(s.t, err)
	return resp.StatusCode, string(text)
}

// push pushes a module that answers every placement call with the code to the fleet. It returns
// its generation.
func (s *site) push(goal string, code ...[]byte) lifecycle.Generation {
	s.t.Helper()
	module := hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, code...)).Encode()
	if status, text := s.pushSigned(goal, module, s.secret, abi.Place); status != http.StatusOK {
		s.t.Fatalf("push: %d %s", status, text)
	}
	return s.number
}

// pushSigned signs a module with a key, for some kinds, and pushes it.
func (s *site) pushSigned(goal string, module []byte, secret ed25519.PrivateKey, kinds ...abi.Kind) (int, string) {
	s.t.Helper()
	s.number++
	st := sign.Statement{Fleet: sign.DefaultFleet, Digest: lifecycle.Sum(module), ABI: abi.Name, Name: "stay", Version: "1.0.0", Generation: s.number}
	for _, k := range kinds {
		st.Grants = append(st.Grants, sign.Grant{Kind: k})
	}
	file, err := sign.Sign(sign.File{Statement: st}, secret)
	testkit.NoError(s.t, err)
	signature, err := file.Encode()
	testkit.NoError(s.t, err)
	body, err := json.Marshal(map[string][]byte{"module": module, "signature": signature})
	testkit.NoError(s.t, err)
	return s.order("push", url.Values{"goal": {goal}}, body)
}

func (s *site) ordered(what string, q url.Values) {
	s.t.Helper()
	if status, text := s.order(what, q, nil); status != http.StatusOK {
		s.t.Fatalf("%s: %d %s", what, status, text)
	}
}

// slot returns the control plane's state of the slot place.
func (s *site) slot() control.PolicySlot {
	for _, slot := range s.Control().Policies().Slots {
		if slot.Slot == lifecycle.Place {
			return slot
		}
	}
	return control.PolicySlot{}
}

// await waits until the slot meets a condition.
func (s *site) await(what string, good func(control.PolicySlot) bool) control.PolicySlot {
	s.t.Helper()
	began := time.Now()
	defer func() { s.t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond)) }()
	return testkit.WaitForValue(s.t, what, s.slot, good)
}

// everywhere reports whether all three migrators have a generation in a phase.
func everywhere(slot control.PolicySlot, generation lifecycle.Generation, phase lifecycle.Phase) bool {
	n := 0
	for _, node := range slot.Nodes {
		for _, l := range node.Modules {
			if l.Generation == generation && l.Phase == phase {
				n++
			}
		}
	}
	return n == 3
}

// decides reports whether a generation is active on all three migrators.
func decides(slot control.PolicySlot, generation lifecycle.Generation) bool {
	for _, n := range slot.Nodes {
		if n.Active != generation {
			return false
		}
	}
	return len(slot.Nodes) == 3
}

// ended reports whether a generation was the last one rolled back.
func ended(slot control.PolicySlot, generation lifecycle.Generation) bool {
	n := len(slot.RolledBack)
	return n > 0 && slot.RolledBack[n-1].Generation == generation
}

// traffic starts clients that send one request after the other to the fleet. The returned
// function stops them and fails the test for every failed request.
func (s *site) traffic() (stop func() int64) {
	var done, failed atomic.Int64
	var first atomic.Pointer[string]
	over := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := s.ask(); err != nil {
					text := err.Error()
					first.CompareAndSwap(nil, &text)
					failed.Add(1)
				}
				done.Add(1)
			}
		})
	}
	return func() int64 {
		close(over)
		clients.Wait()
		if n := failed.Load(); n > 0 {
			s.t.Errorf("%d of %d requests failed; the first: %s", n, done.Load(), *first.Load())
		}
		return done.Load()
	}
}

func (s *site) ask() error {
	resp, err := s.client.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"once","max_tokens":2,"stream":true}`))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("[DONE]"))) {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// TestRollOut promotes a module from shadow to the whole fleet under traffic and rolls it
// back, and checks that no request fails.
func TestRollOut(t *testing.T) {
	s := newSite(t)
	stop := s.traffic()
	stays := hosttest.Result(uint32(abi.None), 0)
	g := s.push("shadow", stays)
	s.await("in shadow", func(p control.PolicySlot) bool { return everywhere(p, g, lifecycle.Shadow) && decides(p, 0) })
	s.ordered("goal", url.Values{"goal": {"canary"}, "permille": {"500"}})
	s.await("in canary", func(p control.PolicySlot) bool {
		return everywhere(p, g, lifecycle.Canary) && p.Nodes[0].Permille == 500
	})
	s.ordered("goal", url.Values{"goal": {"active"}})
	p := s.await("stable", func(p control.PolicySlot) bool { return decides(p, g) && p.Stable != nil && p.Stable.Generation == g })
	if p.Candidate != nil || p.Nodes[0].Modules[0].Faults != 0 {
		t.Errorf("%+v", p)
	}
	s.await("asked", func(p control.PolicySlot) bool { return p.Nodes[0].Modules[0].Calls > 100 })

	// The next one replaces it and is rolled back: the previous one decides again.
	next := s.push("active", hosttest.I32(1), hosttest.Op(0x1a), stays)
	s.await("stable", func(p control.PolicySlot) bool {
		return decides(p, next) && p.Stable.Generation == next && p.Previous != nil
	})
	s.ordered("rollback", url.Values{"reason": {"a test"}, "by": {"ann"}})
	p = s.await("back", func(p control.PolicySlot) bool { return decides(p, g) })
	if p.Stable == nil || p.Stable.Generation != g || len(p.RolledBack) != 1 || p.RolledBack[0].Reason != "a test" || p.RolledBack[0].By != "ann" {
		t.Errorf("%+v", p)
	}
	s.ordered("rollback", url.Values{})
	s.await("native", func(p control.PolicySlot) bool { return decides(p, 0) && p.Stable == nil })
	if n := stop(); n < 100 {
		t.Errorf("%d requests: the test says nothing", n)
	}
}

// TestHostile checks that modules that trap or loop are rejected and fail no request.
func TestHostile(t *testing.T) {
	s := newSite(t)
	stop := s.traffic()

	// A module that traps in every call is rejected while it is being built; one that
	// traps now and then is rejected in shadow, where its answers are not used, and
	// is withdrawn from the whole fleet.
	dull := s.push("active", hosttest.Unreachable, hosttest.I64(0))
	s.await("given up", func(p control.PolicySlot) bool { return everywhere(p, dull, lifecycle.Rejected) && decides(p, 0) })
	traps := s.push("shadow", hosttest.OneIn(32, hosttest.Unreachable), hosttest.Result(uint32(abi.None), 0))
	p := s.await("withdrawn", func(p control.PolicySlot) bool { return p.Candidate == nil && len(p.RolledBack) == 1 })
	if p.RolledBack[0].Generation != traps || !strings.Contains(p.RolledBack[0].Reason, "r") || !decides(p, 0) {
		t.Errorf("%+v", p)
	}

	// A module that places requests on an invalid peer is rejected on every replica; the
	// native policy answers for it.
	lies := s.push("stable", hosttest.Result(uint32(abi.OK), 1<<20))
	s.await("given up", func(p control.PolicySlot) bool { return everywhere(p, lies, lifecycle.Rejected) && decides(p, 0) })
	// A module that loops now and then is rejected while it is active: as soon as one
	// host has rejected it, the whole fleet goes back to the previous module or to the
	// native policy.
	loops := [][]byte{hosttest.OneIn(64, hosttest.Loop(hosttest.Br(0))), hosttest.Result(uint32(abi.None), 0)}
	good := s.push("stable", hosttest.Result(uint32(abi.None), 0))
	s.await("stable", func(p control.PolicySlot) bool { return decides(p, good) })
	bad := s.push("stable", loops...)
	p = s.await("taken back", func(p control.PolicySlot) bool { return ended(p, bad) && decides(p, good) })
	if e := p.RolledBack[len(p.RolledBack)-1]; p.Stable == nil || p.Stable.Generation != good || !strings.Contains(e.Reason, "r") || e.By == "" {
		t.Errorf("%+v", p)
	}
	s.ordered("rollback", url.Values{})
	bad = s.push("stable", loops...)
	p = s.await("native", func(p control.PolicySlot) bool { return ended(p, bad) && decides(p, 0) })
	if p.Stable != nil {
		t.Errorf("%+v", p)
	}
	stop()
}

// TestNotAdmitted checks that modules of untrusted signers, and files that are no policies,
// are not admitted.
func TestNotAdmitted(t *testing.T) {
	s := newSite(t)
	public, secret, _ := ed25519.GenerateKey(nil)
	refused := func(want string, secret ed25519.PrivateKey, module []byte, kinds ...abi.Kind) {
		t.Helper()
		if status, text := s.pushSigned("shadow", module, secret, kinds...); status != http.StatusUnprocessableEntity || !strings.Contains(text, want) {
			t.Errorf("%d %s, want %q", status, text, want)
		}
	}
	good := hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, hosttest.I64(0))).Encode()
	refused("signed by 0 keys of the ring, 1 have to sign: key "+sign.IDOf(public).String()+" has signed", secret, good, abi.Place)
	refused("does not let it decide place", s.secret, good, abi.Select)
	refused("cs_place_v1", s.secret, hosttest.Policy(hosttest.LeastLoad()).Encode(), abi.Place)
	refused("not a WebAssembly 1 module", s.secret, []byte("not a module"), abi.Place)
	if p := s.slot(); p.Candidate != nil || p.Stable != nil {
		t.Errorf("%+v", p)
	}
}

package frontend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// fleet is several replicas. Clients use the first one, r0. What setups give to replicas is here, used or not.
type fleet struct {
	*testServer // r0
	t           *testing.T
	servers     []*testServer
	engines     []*engine
	placers     []*placer     // of all replicas, with places
	rescuer     *rescuer      // of r0, with rescues
	connector   *connector    // of all engines, with handsOver
	prefixes    *prefixHolder // known to all replicas, with pulls
	noFetch     atomic.Bool   // r0's engine serves its block table, with fetchesPrefills
	prefilled   []string      // what r0 has reported of prompts for a prefill replica
	migrations  atomic.Int64
}

// setup changes the configuration of a replica that is about to join a fleet.
type setup func(f *fleet, c *Config)

// configured is the setup that changes a configuration.
func configured(change func(*Config)) setup { return func(_ *fleet, c *Config) { change(c) } }

// places gives a replica a Placer, which places nothing elsewhere before sendTo.
func places(f *fleet, c *Config) { c.Placer = f.placers[len(f.servers)] }

// rescues gives r0 a Rescuer with all replicas as targets.
func rescues(f *fleet, c *Config) {
	if c.Replica == "r0" {
		c.Rescuer = f.rescuer
	}
}

// handsOver gives the engine a KV connector, and allows handoffs.
func handsOver(f *fleet, c *Config) {
	c.Handoff, f.engines[len(f.servers)].connector = true, f.connector
}

// pulls lets requests begin with a prefix that f.prefixes holds. The engine computes a token in a millisecond; a
// microsecond is enough for its KV.
func pulls(f *fleet, c *Config) {
	c.Cost = policies.Cost{D0: 0.01, D2: 1e-3}
	c.PrefixPull = &PrefixPull{Holders: f.prefixes, Copier: f.prefixes, TokenBytes: 1000, Reason: func(error) string { return "why" },
		Link: func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Gigabyte} }}
}

// fetchesPrefills makes r1 the prefill replica of r0, whose engine fetches what it computes.
func fetchesPrefills(f *fleet, c *Config) {
	handsOver(f, c)
	if c.Replica == "r0" {
		places(f, c)
		c.FetchPrefill = func() bool { return !f.noFetch.Load() }
		c.OnPrefill = func(from policies.ReplicaID, fetched bool) {
			f.prefilled = append(f.prefilled, fmt.Sprint(from, " ", fetched))
		}
	}
	if c.Replica == "r1" {
		f.placers[0].prefill.Store(true)
		f.placers[0].sendTo(policies.Target{Replica: "r1", Address: c.PeerListener.Addr().String()})
	}
}

// newFleet starts a fleet of n replicas, set up in the order of the setups.
func newFleet(t *testing.T, n int, setups ...setup) *fleet {
	f := &fleet{t: t, rescuer: new(rescuer), connector: &connector{kept: make(map[string][]uint32)},
		prefixes: &prefixHolder{holder: policies.Target{Replica: "r9", Address: "127.0.0.1:9"}}}
	for range n {
		f.engines, f.placers = append(f.engines, newEngine(t)), append(f.placers, new(placer))
	}
	for i, e := range f.engines {
		f.servers = append(f.servers, startServer(t, e.URL, func(c *Config) {
			c.Replica, c.Adopter = policies.ReplicaID(fmt.Sprint("r", i)), adopter{}
			for _, change := range setups {
				change(f, c)
			}
		}))
		f.rescuer.targets = append(f.rescuer.targets, f.target(i))
	}
	f.testServer = f.servers[0]
	return f
}

// runFleet runs a test of a fleet in virtual time.
func runFleet(t *testing.T, n int, test func(t *testing.T, f *fleet), setups ...setup) {
	synctest.Test(t, func(t *testing.T) { test(t, newFleet(t, n, setups...)) })
}

// setPace makes every engine wait before each token.
func (f *fleet) setPace(d time.Duration) {
	for _, e := range f.engines {
		e.set(func(int, *http.Request) { time.Sleep(d) }, nil)
	}
}

func (f *fleet) target(i int) policies.Target {
	return policies.Target{Replica: policies.ReplicaID(fmt.Sprint("r", i)), Address: f.servers[i].peer}
}

func (f *fleet) index(r policies.ReplicaID) (i int) {
	fmt.Sscanf(string(r), "r%d", &i)
	return i
}

// findLeg returns a stream's holder and its leg there; false if the leg has not
// begun.
func (f *fleet) findLeg(stream string) (Holder, LocalLeg, bool) {
	h, ok := f.Holder(stream)
	if !ok {
		return h, LocalLeg{}, false
	}
	for _, r := range f.servers[f.index(h.Replica)].LocalLegs() {
		if r.Request.ID == stream && r.Epoch == h.Epoch && r.Request.Output > 0 {
			return h, r, true
		}
	}
	return h, LocalLeg{}, false
}

// waitForStream waits until the one stream of r0 has that many tokens.
func (f *fleet) waitForStream(output policies.Tokens) *Stream {
	f.t.Helper()
	var s *Stream
	waitFor(f.t, func() bool {
		s = nil
		f.EachStream(func(one *Stream) bool { s = one; return false })
		return s != nil && s.Request().Output >= output
	})
	return s
}

// waitForLegs waits until r0's engine has n requests.
func (f *fleet) waitForLegs(n int) {
	f.t.Helper()
	waitFor(f.t, func() bool { return len(f.LocalLegs()) == n })
}

// migrateLive migrates a stream with its KV, as a source and a target would;
// spoil may change the request.
func (f *fleet) migrateLive(ctx context.Context, stream string, to int, spoil func(*Migration)) (policies.Epoch, error) {
	h, r, ok := f.findLeg(stream)
	if !ok {
		return 0, ErrStaleEpoch
	}
	from := f.index(h.Replica)
	has, ok := f.engines[from].freeze(r.Name)
	if !ok {
		f.engines[from].thaw(r.Name)
		return 0, ErrStaleEpoch
	}
	name := fmt.Sprint(h.Replica, "/", f.migrations.Add(1))
	f.engines[to].reserve(name, has)
	m := Migration{Stream: stream, From: h.Replica, Epoch: h.Epoch, To: f.target(to), Reservation: name,
		Length: len(has.ids), Hash: prefix.Hash(0).Extend(has.ids...), Cached: int(r.Request.Input) / 16 * 16}
	if spoil != nil {
		spoil(&m)
	}
	moved, err := f.Migrate(ctx, m)
	if err != nil {
		f.servers[from].AdvanceEpoch(stream, moved.Epoch)
		f.engines[from].thaw(r.Name)
	}
	return moved.Epoch, err
}

// moveIDs migrates a stream without a reservation, as the executors ask the front end to.
func (f *fleet) moveIDs(ctx context.Context, stream string, to int) (MigrationResult, error) {
	h, r, ok := f.findLeg(stream)
	if !ok {
		return MigrationResult{}, ErrStaleEpoch
	}
	from := f.servers[f.index(h.Replica)]
	m := Migration{Stream: stream, From: h.Replica, FromAddress: from.peer, Epoch: h.Epoch, To: f.target(to), Cached: int(r.Request.Input) / 16 * 16}
	m.FromConnector, m.FromBusy = from.KVConnector()
	m.ToConnector, _ = f.servers[to].KVConnector()
	moved, err := f.Migrate(ctx, m)
	if err != nil {
		from.AdvanceEpoch(stream, moved.Epoch)
	}
	return moved, err
}

// migrateReprompt is moveIDs for a migration of which the epoch matters.
func (f *fleet) migrateReprompt(ctx context.Context, stream string, to int) (policies.Epoch, error) {
	moved, err := f.moveIDs(ctx, stream, to)
	return moved.Epoch, err
}

// handOff is moveIDs for fleets whose engines have KV connectors, and handOn is that for hop.
func (f *fleet) handOff(stream string, to int) (MigrationResult, error) {
	return f.moveIDs(f.t.Context(), stream, to)
}

func (f *fleet) handOn(stream string, to int) error {
	moved, err := f.handOff(stream, to)
	if err == nil && !moved.Handoff {
		err = errors.New("the target computed the KV")
	}
	return err
}

// requireIdle fails if anything is left of the requests that ran.
func (f *fleet) requireIdle() {
	f.t.Helper()
	for _, fr := range f.servers {
		waitFor(f.t, func() bool {
			l := fr.Status().Load
			return l == policies.Load{} && len(fr.LocalLegs()) == 0 && len(fr.FrontEnds()) == 0 && len(fr.Holders()) == 0 && fr.inFlight.isIdle()
		})
	}
	for i, e := range f.engines {
		waitFor(f.t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(e.reserved) > 0 {
				f.t.Fatalf("engine %d keeps reservations", i)
			}
			return len(e.runs) == 0
		})
	}
}

// requestKinds returns the requests whose answers must not show that they
// migrated.
func requestKinds() (all [][2]string) {
	for path, prompt := range map[string]string{
		"/v1/completions":      `"prompt":"Once \"upon\" a time"`,
		"/v1/chat/completions": `"messages":[{"role":"user","content":"Häh?"}]`,
	} {
		for _, more := range []string{"", `,"return_token_ids":true`, `,"stream":true`, `,"stream":true,"return_token_ids":true`,
			`,"stream":true,"stream_options":{"include_usage":true}`, `,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`} {
			all = append(all, [2]string{path, `{"model":"m",` + prompt + more + `,"min_tokens":3,"max_tokens":90}`})
		}
	}
	return all
}

// hop moves an answer of every kind from replica to replica, and compares it with the engine's own.
func (f *fleet) hop(hops int, move func(stream string, to int) error) {
	f.t.Helper()
	for _, kind := range requestKinds() {
		s, hop := f.startKind(kind, 3), 0
		waitFor(f.t, func() bool {
			err := move(s.id, (hop+1)%3)
			if err == nil {
				hop++
			} else if err != ErrStaleEpoch {
				f.t.Fatalf("%s: hop %d: %v", kind, hop, err)
			}
			return hop == hops
		})
		if h, _ := f.Holder(s.id); h != (Holder{Replica: f.target(hops % 3).Replica, Epoch: policies.Epoch(hops + 1)}) || s.Splices() != hops {
			f.t.Errorf("%s: after %d hops the stream is at %+v", kind, hops, h)
		}
		if body := <-s.got; withoutIDs(body) != withoutIDs(s.want) {
			f.t.Fatalf("%s: moved\n got %s\nwant %s", kind, body, s.want)
		}
	}
	f.requireIdle()
}

// directAnswer returns what an engine answers when it is asked directly.
func (f *fleet) directAnswer(path, body string) string {
	f.t.Helper()
	f.setPace(0)
	_, want := f.engines[0].post(path, body)
	return want
}

// ask sends a request to r0 and fails the test unless the answer is what an engine answers directly.
func (f *fleet) ask(path, body string) {
	f.t.Helper()
	_, want := f.engines[len(f.engines)-1].post(path, body)
	if resp, got := f.post(path, body); resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
		f.t.Errorf("%s: %s %s\nwant %s", path, resp.Status, got, want)
	}
}

// runningStream is a stream of r0 in progress, and the answer that it must
// become.
type runningStream struct {
	*Stream
	got  chan string
	want string
}

// startStream starts a paced stream and waits for four tokens.
func (f *fleet) startStream(body string) runningStream {
	f.t.Helper()
	return f.startKind([2]string{"/v1/completions", body}, 4)
}

// startKind starts a paced stream of a kind and waits until it has that many tokens.
func (f *fleet) startKind(kind [2]string, output policies.Tokens) runningStream {
	f.t.Helper()
	b := runningStream{got: make(chan string, 1), want: f.directAnswer(kind[0], kind[1])}
	f.setPace(2 * time.Millisecond)
	go func() { b.got <- f.tryPost(kind[0], kind[1]) }()
	b.Stream = f.waitForStream(output)
	return b
}

// startSlowStream starts a stream that lasts for more than a minute; other requests, and legs
// that continue it, are answered at once.
func (f *fleet) startSlowStream(body string) runningStream {
	f.t.Helper()
	b := runningStream{got: make(chan string, 1), want: f.directAnswer("/v1/completions", body)}
	f.engines[0].slowLegs("#1")
	go func() { b.got <- f.tryPost("/v1/completions", body) }()
	b.Stream = f.waitForStream(4)
	return b
}

// learnTemplates lets r0 learn the templates of the answers of all kinds.
func (f *fleet) learnTemplates() {
	f.t.Helper()
	for _, kind := range requestKinds() {
		f.post(kind[0], strings.Replace(kind[1], "90", "4", 1))
	}
}

// requireAnswer waits for the end of a stream, and fails the test unless it is the engine's own and nothing is left
// of it.
func (f *fleet) requireAnswer(b runningStream) {
	f.t.Helper()
	f.requireText(b, withoutIDs)
}

// requireRescuedAnswer is requireAnswer for a stream that may have lost its first engine.
func (f *fleet) requireRescuedAnswer(b runningStream) {
	f.t.Helper()
	f.requireText(b, withoutCached)
}

func (f *fleet) requireText(b runningStream, without func(string) string) {
	f.t.Helper()
	if got := <-b.got; without(got) != without(b.want) {
		f.t.Errorf("got %s\nwant %s", got, b.want)
	}
	f.requireIdle()
}

var cachedValue = regexp.MustCompile(`"cached_tokens":(\d+|null)`)

// withoutCached removes from an answer what may change when its engine dies: only
// that engine knew how much of the prompt was cached.
func withoutCached(s string) string { return cachedValue.ReplaceAllString(withoutIDs(s), "") }

const longRequest = `{"model":"m","prompt":"x","max_tokens":70,"stream":true,"stream_options":{"include_usage":true}}`

// postSlowly sends a request and returns the answer, whose body arrives as fast as the
// caller reads it.
func (f *fleet) postSlowly(path, body string) *http.Response {
	f.t.Helper()
	here := testkit.Must(memory.dial(f.t.Context(), "tcp", f.url))
	f.t.Cleanup(func() { here.Close() })
	go fmt.Fprintf(here, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	resp := testkit.Must(http.ReadResponse(bufio.NewReaderSize(here, 16), nil))
	return resp
}

// promptOf returns a prompt of n token ids, and requests with it whose answer is no stream, and one.
func promptOf(n int) (ids []uint32, whole, streamed string) {
	ids = make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i%900 + 7)
	}
	rest := `"model":"m","cache_salt":"tenant","max_tokens":3,"prompt":` + formatIDs(ids, true) + `}`
	return ids, "{" + rest, `{"stream":true,` + rest
}

package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/server"
)

// scenario is one scenario of a file.
type scenario struct {
	file  string
	name  string
	delta bool
	stock string // how the stock cache differs; "" if it does not
	line  int    // of the first step
	steps []string
}

// readScenarios reads a file.
func readScenarios(t *testing.T, file string) []*scenario {
	t.Helper()
	b := testkit.Must(os.ReadFile(file))
	var all []*scenario
	for i, line := range strings.Split(string(b), "\n") {
		switch {
		case strings.HasPrefix(line, "== "):
			protocol, name, _ := strings.Cut(line[3:], ": ")
			all = append(all, &scenario{file: file, name: protocol + ": " + name, delta: protocol == "delta", line: i + 2})
		case strings.HasPrefix(line, "stock: "):
			all[len(all)-1].stock = line[len("stock: "):]
			fallthrough
		default:
			if len(all) > 0 {
				s := all[len(all)-1]
				s.steps = append(s.steps, line)
			}
		}
	}
	return all
}

// onlyType returns the type of a scenario that has only one, "" otherwise.
func (s *scenario) onlyType() string {
	only := ""
	for _, step := range s.steps {
		words := strings.Fields(step)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "subscribe":
			if only != "" && only != words[1] {
				return ""
			}
			only = words[1]
		case "end":
			return "" // types and nodes are refused on all services
		}
	}
	return shortTypes[only]
}

// subject is a server under test. The stock one has neither groups nor a list of
// the nodes that owe a reply.
type subject struct {
	conn   *grpc.ClientConn
	set    func(words []string)
	during chan func()  // run while the next request is handled
	cache  *cache.Cache // nil: the stock server
}

// interrupter is callbacks that run functions while a request is handled: after
// the server has sent all responses, and before it ends the watch that the
// request replaces. A busy machine may run the cache's goroutine there, too.
type interrupter struct {
	serverv3.Callbacks
	during chan func()
}

func (i interrupter) OnStreamRequest(id int64, r *discoveryv3.DiscoveryRequest) error {
	i.run()
	return i.Callbacks.OnStreamRequest(id, r)
}

func (i interrupter) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	i.run()
	return i.Callbacks.OnStreamDeltaRequest(id, r)
}

func (i interrupter) run() {
	for {
		select {
		case f := <-i.during:
			f()
		default:
			return
		}
	}
}

// newInterrupter returns an interrupter around callbacks.
func newInterrupter(callbacks serverv3.Callbacks) interrupter {
	return interrupter{callbacks, make(chan func(), 10)}
}

// newSubject returns our cache behind our services, with a ledger. The group of
// a node is the first letter of its id.
func newSubject(t *testing.T) subject {
	c := cache.New(cache.Config{Group: func(n *corev3.Node) string { return n.GetId()[:1] }, SecretsFor: func(string) bool { return true }})
	callbacks := newInterrupter(publish.NewLedger(nil))
	s := startServer(t, server.Config{Cache: c, Callbacks: callbacks})
	return subject{s.conn, func(words []string) { c.Set("", setOf(t, words...)) }, callbacks.during, c}
}

// newStockSubject returns go-control-plane's own snapshot cache and server, in
// one of the cache's two modes, with or without ordered types. Its versions are
// content hashes, as ours are; they are the caller's choice.
func newStockSubject(t *testing.T, ordered bool) subject {
	c, callbacks := gcp.NewSnapshotCache(ordered, oneHash{}, nil), newInterrupter(serverv3.CallbackFuncs{})
	conn := serveInMemory(t, func(ctx context.Context, g grpc.ServiceRegistrar) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, c, callbacks, sotw.WithOrderedADS()))
	})
	return subject{conn: conn, during: callbacks.during, set: func(words []string) {
		all := make(map[string][]types.Resource)
		for _, w := range parseResources(t, words) {
			all[w.typ] = append(all[w.typ], message(w.typ, w.name, w.content))
		}
		snapshot := testkit.Must(gcp.NewSnapshot("", all))
		set := setOf(t, words...)
		for typ := range all {
			snapshot.Resources[gcp.GetResponseType(typ)].Version = cache.Digest(set.All(typ))
		}
		testkit.NoError(t, c.SetSnapshot(t.Context(), "all", snapshot))
	}}
}

// player runs the steps of a scenario.
type player struct {
	t        *testing.T
	start    func() subject
	subject  subject // that was started last
	delta    bool
	service  string // type of the service that clients use
	clients  map[string]*playedClient
	current  *playedClient
	versions map[string][]string // version_info of responses by type, over all clients
}

// playedClient is a client and what it remembers.
type playedClient struct {
	*client
	node      string
	unchecked []proto.Message              // came and were not compared
	replies   map[string][]proto.Message   // responses by type, oldest first
	has       map[string]map[string]string // versions by type and name
}

// runScenario returns how a server differs from a scenario, or nil.
func runScenario(t *testing.T, s *scenario, service string, start func() subject) error {
	a := &player{t: t, start: start, subject: start(), delta: s.delta, service: service, clients: make(map[string]*playedClient), versions: make(map[string][]string)}
	for i, step := range s.steps {
		words := strings.Fields(step)
		if len(words) == 0 || words[0] == "stock:" {
			continue
		}
		if err := a.runStep(words[0], words[1:]); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", s.file, s.line+i, step, err)
		}
	}
	return nil
}

// client returns the present client.
func (a *player) client() *playedClient {
	if a.current == nil {
		a.setClient("n")
	}
	return a.current
}

// setClient continues as a client, whose name is its node id, and the number of one of
// several streams after a slash.
func (a *player) setClient(name string) {
	node := name
	if a.clients[node] == nil {
		id, _, _ := strings.Cut(expand(name), "/")
		if id == "-" {
			id = ""
		}
		a.clients[node] = &playedClient{
			client: openStream(a.t, a.subject.conn, a.delta, a.service, id), node: id,
			replies: make(map[string][]proto.Message), has: make(map[string]map[string]string),
		}
	}
	a.current = a.clients[node]
}

// expand replaces "x*1000" by a thousand times x.
func expand(word string) string {
	text, times, found := strings.Cut(word, "*")
	if n, err := strconv.Atoi(times); found && err == nil {
		return strings.Repeat(text, n)
	}
	return word
}

// runStep runs one step.
func (a *player) runStep(verb string, words []string) error {
	switch verb {
	case "set":
		synctest.Wait()
		a.subject.set(words)
		return nil
	case "during": // the next request
		synctest.Wait()
		a.subject.during <- func() { a.subject.set(words[1:]) }
		return nil
	case "client":
		a.setClient(words[0])
		return nil
	case "repeat": // # is the number of the round
		n, err := strconv.Atoi(words[0])
		for i := range n {
			round := strings.Fields(strings.ReplaceAll(strings.Join(words[1:], " "), "#", strconv.Itoa(i)))
			err = errors.Join(err, a.runStep(round[0], round[1:]))
		}
		return err
	case "sleep":
		a.client()
		length, err := time.ParseDuration(words[0])
		time.Sleep(length)
		return err
	case "service":
		a.service = shortTypes[words[0]]
		return nil
	case "node", "cluster": // of the next request
		if c := a.client(); verb == "node" {
			c.client.node = &corev3.Node{Id: words[0]}
		} else {
			c.client.node.Cluster = expand(words[0])
		}
		return nil
	case "group", "unanswered":
		if verb != "unanswered" { // which is asked between a change and its responses, too
			synctest.Wait()
		}
		if a.subject.cache == nil {
			return errors.ErrUnsupported
		}
		return a.runCacheStep(verb, words)
	case "restart":
		a.client().stream.CloseSend()
		a.subject = a.start()
		return a.runStep("reconnect", nil)
	}
	c := a.client()
	var typ string
	var rest []string
	if len(words) > 0 {
		typ = shortTypes[words[0]]
		for _, word := range words[1:] {
			rest = append(rest, expand(word))
		}
		if typ == "" && words[0] != "-" {
			typ = "type.googleapis.com/" + words[0]
		}
	}
	switch verb {
	case "subscribe":
		c.subscribe(typ, rest...)
	case "unsubscribe":
		c.unsubscribe(typ, rest...)
	case "resume":
		c.resume(typ, c.has[typ], rest...)
	case "reconnect":
		c.stream.CloseSend()
		synctest.Wait()
		good := c.good // the versions that a client claims on its next stream
		c.client = openStream(a.t, a.subject.conn, a.delta, a.service, c.node)
		c.good = good
		c.replies = make(map[string][]proto.Message)
	case "receive", "accept":
		m, err := a.checkNext(c, typ, rest)
		if err == nil && verb == "accept" {
			c.ack(m)
		}
		return err
	case "ack":
		c.ack(last(c.replies[typ], 1))
	case "nack":
		c.nack(last(c.replies[typ], 1))
	case "stale":
		if a.delta {
			c.ack(last(c.replies[typ], 2))
		} else {
			good, now := c.good[typ], c.last[typ]
			c.last[typ] = last(c.replies[typ], 2).(*discoveryv3.DiscoveryResponse)
			c.ack(c.last[typ])
			c.good[typ], c.last[typ] = good, now
		}
	case "version":
		v := a.versions[typ]
		if same := v[len(v)-1] == v[len(v)-2]; same != (rest[0] == "same") {
			return fmt.Errorf("versions %q", v)
		}
	case "quiet":
		if words := c.receiveNew(); len(words) > 0 {
			return fmt.Errorf("unexpected responses %q", words)
		}
		if err := c.endError(); err != nil {
			return err
		}
	case "end":
		err := c.endError()
		if text := strings.Join(words[1:], " "); err == nil || status.Code(err).String() != words[0] || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("stream ended with %v", err)
		}
	default:
		return fmt.Errorf("unknown step")
	}
	return nil
}

// runCacheStep runs a step that only our cache has.
func (a *player) runCacheStep(verb string, words []string) error {
	switch verb {
	case "group":
		a.subject.cache.Set(words[0], setOf(a.t, words[1:]...))
	case "unanswered":
		ids := make(map[string]bool)
		a.subject.cache.Unanswered([]string{eds, rds}, ids)
		if got := slices.Sorted(maps.Keys(ids)); !slices.Equal(got, words) {
			return fmt.Errorf("nodes that owe a reply: %q", got)
		}
	}
	return nil
}

// last returns the i-th last message.
func last(all []proto.Message, i int) proto.Message { return all[len(all)-i] }

// receiveNew collects the responses that came, and returns those that were not
// compared, as text.
func (c *playedClient) receiveNew() []string {
	all, _ := c.receive()
	c.unchecked = append(c.unchecked, all...)
	var words []string
	for _, m := range c.unchecked {
		words = append(words, formatResponse(m))
	}
	return words
}

// checkNext compares the next response.
func (a *player) checkNext(c *playedClient, typ string, want []string) (proto.Message, error) {
	came := c.receiveNew()
	if len(came) == 0 {
		return nil, fmt.Errorf("no response")
	}
	m := c.unchecked[0]
	c.unchecked = c.unchecked[1:]
	if got := formatResponse(m); got != strings.Join(append([]string{shortOf(typ)}, want...), " ") {
		return nil, fmt.Errorf("unexpected responses %q", came)
	}
	c.replies[typ] = append(c.replies[typ], m)
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryResponse:
		if c.has[typ] == nil {
			c.has[typ] = make(map[string]string)
		}
		for _, res := range r.Resources {
			c.has[typ][res.Name] = res.Version
		}
		for _, name := range r.RemovedResources {
			delete(c.has[typ], name)
		}
	case *discoveryv3.DiscoveryResponse:
		c.last[typ] = r
		a.versions[typ] = append(a.versions[typ], r.VersionInfo)
	}
	return m, nil
}

func shortOf(typ string) string {
	for word, t := range shortTypes {
		if t == typ {
			return word
		}
	}
	return typ
}

// formatResponse returns a response in the syntax of scenarios.
func formatResponse(m proto.Message) string {
	typ := m.(interface{ GetTypeUrl() string }).GetTypeUrl()
	return strings.Join(append([]string{shortOf(typ)}, namesIn(m)...), " ")
}

// TestConformance runs every scenario against our server, and against the stock
// one, for which one of its modes has to pass. They differ exactly where the
// file says so.
func TestConformance(t *testing.T) {
	for _, s := range readScenarios(t, "testdata/conformance.txt") {
		t.Run(s.name, func(t *testing.T) {
			services := []string{""}
			if only := s.onlyType(); only != "" {
				services = append(services, only)
			}
			for _, service := range services {
				synctest.Test(t, func(t *testing.T) {
					if err := runScenario(t, s, service, func() subject { return newSubject(t) }); err != nil {
						t.Errorf("service %q: %v", shortOf(service), err)
					}
				})
			}
			var differs []error
			for _, ordered := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) {
					if err := runScenario(t, s, "", func() subject { return newStockSubject(t, ordered) }); err != nil {
						differs = append(differs, err)
					}
				})
			}
			switch both := len(differs) == 2; {
			case both && s.stock == "":
				t.Errorf("stock server differs: %v", errors.Join(differs...))
			case !both && s.stock != "":
				t.Errorf("stock server does not differ: %s", s.stock)
			}
		})
	}
}

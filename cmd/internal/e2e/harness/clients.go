package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Model is the name of the first model of every test fleet.
const Model = "m"

// Patience bounds every wait for an event that must happen soon.
const Patience = 4 * time.Minute

// Clients are the clients of one fleet. All fields but State are required.
type Clients struct {
	T         testing.TB
	DataPlane string          // base URL
	Admin     string          // base URL of the control plane's admin server
	HTTP      *http.Client    // with connections of the fleet's own
	Engine    emulator.Config // of the oracle
	State     func() string   // describes the fleet after a wait that failed

	once   sync.Once
	oracle *Oracle
}

// NewHTTP returns an HTTP client with connections of its own.
func NewHTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
}

// WaitFor waits for a condition, and shows the state of the fleet if it never holds.
func (c *Clients) WaitFor(what string, holds func() bool) {
	c.T.Helper()
	held := false
	defer func() {
		if !held && c.State != nil {
			c.T.Log(c.State())
		}
	}()
	testkit.WaitFor(c.T, what, holds)
	held = true
}

// Order executes an operator's command for a replica through the admin server.
func (c *Clients) Order(what, replica string) {
	c.T.Helper()
	testkit.NoError(c.T, c.TryOrder(what, replica))
}

// TryOrder is Order for goroutines other than the test's.
func (c *Clients) TryOrder(what, replica string) error {
	status, body, err := c.Post(c.Admin + "/" + what + "?replica=" + replica)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s %s: %d: %s", what, replica, status, body)
	}
	return err
}

// Post sends a command to an admin server.
func (c *Clients) Post(url string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(c.T.Context(), Patience) // the control plane may be suspended
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set(control.AdminHeader, "1")
	return do(c.HTTP, req)
}

// Get fetches a page, which must return 200.
func (c *Clients) Get(url string) (string, error) {
	req, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	status, body, err := do(c.HTTP, req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d: %s", url, status, body)
	}
	return string(body), err
}

// Status fetches the state of a control plane, whose admin server has this base URL, once.
func (c *Clients) Status(admin string) (s control.Status, err error) {
	body, err := c.Get(admin + "/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	return s, err
}

// AwaitStatus waits until the control plane's state meets a condition.
func (c *Clients) AwaitStatus(what string, holds func(control.Status) bool) {
	c.T.Helper()
	c.WaitFor(what, func() bool {
		s, err := c.Status(c.Admin)
		return err == nil && holds(s)
	})
}

// AwaitServing waits until a replica receives requests.
func (c *Clients) AwaitServing(id string) {
	c.T.Helper()
	c.AwaitStatus(id+" serves", func(s control.Status) bool {
		r := Find(s, id)
		return r.Health == "healthy" && r.Weight > 0 && r.Connected && len(r.Drain) == 0
	})
}

// Tally logs migrations by cause and path, and returns how many were done.
func Tally(t testing.TB, migrations []control.Migration) (done int) {
	t.Helper()
	by, stall := map[string]int{}, 0.0
	for _, m := range migrations {
		key := m.Cause + " " + m.Method + " " + m.State
		if m.Transport != "" {
			key += " by " + m.Transport
		}
		if m.Reason != "" {
			key += ": " + m.Reason
		}
		by[key]++
		if m.State == "done" {
			done++
			stall = max(stall, m.Stall)
		}
	}
	t.Logf("migrations: %v; longest stall %.1f ms", by, stall*1e3)
	return done
}

// do sends a request and reads the whole answer.
func do(client *http.Client, req *http.Request) (status int, body []byte, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// Prompt returns the body of a completion of exactly size bytes, at least 80, that asks for output tokens. Bodies of
// different seeds have different prompts from their first token on.
func Prompt(seed, size, output int) []byte {
	head := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"ignore_eos":true,"prompt":"`, Model, output)
	if seed != 0 {
		head += fmt.Sprint(seed, " ")
	}
	const tail, song = `"}`, "over the hill and far away "
	n := max(1, size-len(head)-len(tail))
	return slices.Concat([]byte(head), bytes.Repeat([]byte(song), n/len(song)+1)[:n], []byte(tail))
}

// WithStream returns a body with the option to stream.
func WithStream(body []byte) []byte {
	return append(body[:len(body)-1:len(body)-1], `,"stream":true}`...)
}

// Oracle computes the answer that every replica must give.
type Oracle struct {
	server *httptest.Server
	mu     sync.Mutex
	known  map[string]string
}

// Oracle returns the oracle of the fleet. The first call starts it, on the goroutine of the test.
func (c *Clients) Oracle() *Oracle {
	c.T.Helper()
	c.once.Do(func() {
		c.Engine.Speed = 10_000 // as fast as this host allows
		engine, err := emulator.New(c.Engine)
		testkit.NoError(c.T, err)
		testkit.Run(c.T, engine.Run)
		c.oracle = &Oracle{server: httptest.NewServer(engine.Handler()), known: make(map[string]string)}
		c.T.Cleanup(c.oracle.server.Close)
	})
	return c.oracle
}

// Text returns the text that follows a body's prompt.
func (o *Oracle) Text(body []byte) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.known[string(body)]; ok {
		return s, nil
	}
	resp, err := o.server.Client().Post(o.server.URL+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("oracle: %s: %s: %w", resp.Status, answer, err)
	}
	s := gjson.GetBytes(answer, "choices.0.text").Str
	o.known[string(body)] = s
	return s, nil
}

// random returns the generator of a worker.
func random(worker int) *rand.Rand { return rand.New(rand.NewPCG(1, uint64(worker))) }

// Replicas returns the replicas in a status, also those without a stage.
func Replicas(s control.Status) (all []control.Replica) {
	for _, m := range s.Models {
		for _, st := range m.Stages {
			all = append(all, st.Replicas...)
		}
		all = append(all, m.Unassigned...)
	}
	return all
}

// Find returns a replica in a status, or a zero one if it is not there.
func Find(s control.Status, id string) control.Replica {
	for _, r := range Replicas(s) {
		if string(r.ID) == id {
			return r
		}
	}
	return control.Replica{}
}

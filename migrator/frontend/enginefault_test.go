package frontend

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

const cutErrorPrefix = `data: {"error":{"message":"the engine's answer was cut: `

// truncatingEngine is an engine that sends the first n bytes of a recorded answer
// and closes the connection.
type truncatingEngine struct {
	net.Listener
	answer string
	mu     sync.Mutex
	n      int
}

func (c *truncatingEngine) serve() {
	for {
		conn, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/health" {
					io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					continue
				}
				c.mu.Lock()
				n := c.n
				c.mu.Unlock()
				io.WriteString(conn, c.answer[:n])
				return
			}
		}()
	}
}

// TestEngineCutAtEveryByte kills the engine after each byte of its answer.
func TestEngineCutAtEveryByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		body := `{"model":"m","prompt":"x","stream":true,"max_tokens":2}`
		// Record a whole stream from the engine itself.
		conn := testkit.Must(memory.dial(t.Context(), "tcp", strings.TrimPrefix(e.URL, "http://")))
		asked := `{"model":"m","prompt":"x","stream":true,"max_tokens":2,"return_token_ids":true,"stream_options":{"include_usage":true}}`
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(asked), asked)
		whole, err := io.ReadAll(conn)
		conn.Close()
		testkit.NoError(t, err)
		_, want := e.post("/v1/completions", body)

		c := &truncatingEngine{Listener: listen(), answer: string(whole)}
		defer c.Close()
		go c.serve()
		f := startServer(t, "http://"+c.Addr().String(), nil)
		kinds := map[string]int{}
		reason := strings.Index(string(whole), `"finish_reason":"length"`)
		finished := reason + strings.Index(string(whole[reason:]), "\n\n") + 2 // from here on the client has all the text
		for n := range len(whole) + 1 {
			c.mu.Lock()
			c.n = n
			c.mu.Unlock()
			resp, text, err := tryDo(f.client, jsonRequest(f.url, "/v1/completions", body))
			if err != nil {
				t.Fatalf("cut at %d: %v", n, err)
			}
			got := withoutIDs(text)
			switch {
			case resp.StatusCode == 502 && resp.Header.Get(length.RefusedHeader) == "":
				kinds["lost"]++ // before the first token
			case got == withoutIDs(want):
				kinds["whole"]++
			case got == strings.Replace(withoutIDs(want), `,"system_fingerprint":"vllm-fake"`, "", 1) && n >= finished:
				kinds["concluded"]++ // by the front end, which does not know the fingerprint yet
			default:
				events, failure, found := strings.Cut(got, cutErrorPrefix)
				if !found || n >= finished || strings.Contains(got, "[DONE]") || !strings.HasPrefix(withoutIDs(want), events) || !strings.HasSuffix(failure, "}\n\n") {
					t.Fatalf("cut at %d: %d %s", n, resp.StatusCode, got)
				}
				kinds["cut"]++
			}
		}
		if kinds["lost"] == 0 || kinds["cut"] == 0 || kinds["concluded"] == 0 || kinds["whole"] == 0 {
			t.Errorf("cuts ended %v: each kind should be there", kinds)
		}
		if load := f.Status().Load; load.Running+load.Waiting != 0 {
			t.Errorf("without requests the load is %+v", load)
		}
	})
}

func TestMalformedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bad := range []string{"data: {\"choices\":\n\n", "data: 7\n\n", "data: {\"x\":1}\n\n", "data: {\"choices\":[{\"token_ids\":[-1]}]}\n\n"} {
			e := newEngine(t)
			e.sendEvents(`data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":[1]}]}`+"\n\n"+bad, false)
			f := startServer(t, e.URL, nil)
			resp, got := f.post("/v1/completions", `{"prompt":"x","stream":true}`)
			if resp.StatusCode != 200 || !strings.Contains(got, cutErrorPrefix+"the engine's stream is malformed: ") || strings.Contains(got, "[DONE]") {
				t.Errorf("%q: %d %s", bad, resp.StatusCode, got)
			}
			e.sendEvents(bad, false)
			if resp, got := f.post("/v1/completions", `{"prompt":"x","stream":true}`); resp.StatusCode != 502 {
				t.Errorf("%q at once: %d %s", bad, resp.StatusCode, got)
			}
		}
	})
}

// TestMalformedLeg checks that a peer whose engine answers a request with a malformed stream counts as an engine that was
// lost with it.
func TestMalformedLeg(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.placers[0].sendTo(f.target(1))
		f.engines[1].sendEvents("data: 7\n\n", false)
		before := f.engines[0].calls.Load()
		resp, got := f.servers[0].post("/v1/completions", longRequest, length.AttemptHeader, "2")
		if n := f.engines[0].calls.Load() - before; n > 0 || resp.StatusCode != http.StatusBadGateway {
			t.Errorf("two engines have got it, and %d more: %s %s", n, resp.Status, got)
		}
	}, places, rescues)
}

// TestUnstreamedFaults checks what a client that reads no stream gets.
func TestUnstreamedFaults(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const body = `{"model":"m","prompt":"x"}`
		f.post("/v1/completions", body)
		for _, test := range []struct {
			events, want string
			status       int
		}{
			{`data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":[1]}]}` + "\n\n", "was cut", 502},
			{`data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":[1]}]}` + "\n\ndata: {\"error\":{\"message\":\"no\",\"code\":429}}\n\ndata: [DONE]\n\n", `{"error":{"message":"no","code":429}}`, 429},
			{`data: {"id":"x","choices":[{"index":0,"text":"a","token_ids":[1]}]}` + "\n\ndata: [DONE]\n\n", "without a finish reason", 502},
		} {
			e.sendEvents(test.events, false)
			resp, got := f.post("/v1/completions", body)
			if resp.StatusCode != test.status || !strings.Contains(got, test.want) || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%d %s %s, want %d %s", resp.StatusCode, resp.Header.Get("Content-Type"), got, test.status, test.want)
			}
		}
	})
}

// TestRelayedEvents checks the end of a stream that the front end did not ask for: the engine's own, or an error event.
// A client that leaves is no failure.
func TestRelayedEvents(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const event, end = `data: {"choices":[{"index":1,"text":"a"}]}` + "\n\n", "data: [DONE]\n\n"
		for i, test := range []struct{ sent, want string }{{event + end, event + end}, {event, event + cutErrorPrefix}} {
			e.sendEvents(test.sent, i == 1)
			_, got := f.post("/v1/completions", `{"prompt":"x","n":2}`)
			if failed := f.Status().Service.Failed; !strings.HasPrefix(got, test.want) || strings.Contains(got, end) != (i == 0) || failed != uint64(i) {
				t.Errorf("got %s, want %s; %d failed", got, test.want, failed)
			}
		}
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, event)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		f.abandon(`{"prompt":"x","n":2}`, func() { time.Sleep(time.Second) })
		waitFor(t, f.inFlight.isIdle)
		if n := f.Status().Service.Failed; n != 1 {
			t.Errorf("%d failed after a client has left", n)
		}
	})
}

func TestSilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 10*time.Second)()
		e := newEngine(t)
		e.set(func(n int, r *http.Request) {
			if n == 2 {
				<-r.Context().Done()
			}
		}, nil)
		f := startServer(t, e.URL, func(c *Config) { c.IdleTimeout = 5 * time.Second })
		_, got := f.post("/v1/completions", `{"prompt":"x","stream":true}`)
		if !strings.Contains(got, cutErrorPrefix+errIdle.Error()) || strings.Count(got, `"text"`) != 2 {
			t.Error(got)
		}
	})
}

// TestSilentAnswers checks that an engine that stops before or in an answer that
// is no stream is given up.
func TestSilentAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 5*time.Second)()
		for _, begun := range []bool{false, true} {
			e := newEngine(t)
			hang := func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body) // or the server does not notice that the request is cancelled
				if begun {
					io.WriteString(w, "{")
					http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
			}
			e.set(nil, hang)
			e.pass(hang)
			peer := startServer(t, e.URL, func(c *Config) { c.IdleTimeout = time.Hour })
			f := startServer(t, e.URL, func(c *Config) {
				p := new(placer)
				p.sendTo(policies.Target{Replica: "r1", Address: peer.peer})
				c.IdleTimeout, c.Placer = 50*time.Millisecond, p
			})
			for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
				resp, _, err := tryDo(f.client, jsonRequest(f.url, path, `{"prompt":"x"}`))
				switch {
				case begun && err == nil:
					t.Errorf("%s: an answer that is cut looks whole", path)
				case !begun && err != nil:
					t.Fatal(err)
				case !begun && (resp.StatusCode != 502 || resp.Header.Get(length.RefusedHeader) != ""):
					t.Errorf("%s: %d %v", path, resp.StatusCode, resp.Header)
				}
			}
		}
	})
}

// TestEngineAway checks the refusal that needs no control plane: the listener
// closes, HTTP/2 connections get GOAWAY, running streams go on; and all of it is
// undone when the engine is back, at the same address.
func TestEngineAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		hold := e.blockAt(1)
		f := startServer(t, e.URL, nil)
		<-f.Changed()
		c := &http.Client{Transport: memory.transport(t, 2)}
		resp := testkit.Must(c.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","stream":true}`)))
		defer resp.Body.Close()
		e.unhealthy.Store(true)
		<-f.Changed()
		f.waitForReady(false)
		// New connections are refused, whichever connection the stream keeps.
		waitFor(t, f.refusesConnections)
		// So are new requests on the old HTTP/2 connection, once GOAWAY has arrived.
		waitFor(t, func() bool {
			resp, err := c.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{}`))
			if err == nil {
				resp.Body.Close()
			}
			return err != nil
		})
		close(hold)
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
			t.Errorf("a stream that ran is cut: %v, %q", err, b)
		}
		e.unhealthy.Store(false)
		f.waitForReady(true)
		waitFor(t, func() bool {
			resp, err := c.Get("http://" + f.url + "/health")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == 200
		})
		if _, got := post(t, c, f.url, "/v1/completions", `{"prompt":"x","stream":true}`); !strings.HasSuffix(got, "[DONE]\n\n") {
			t.Error(got)
		}
	})
}

// TestEngineKilled checks what clients get when the engine's process dies.
func TestEngineKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		running := make(chan struct{}, 2)
		e.set(func(n int, r *http.Request) {
			if n == 3 {
				running <- struct{}{}
				<-r.Context().Done()
			}
		}, nil)
		f := startServer(t, e.URL, func(c *Config) { c.HealthInterval = time.Hour })
		var wg sync.WaitGroup
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			wg.Go(func() {
				if got := f.tryPost(path, `{"prompt":"x","messages":[],"stream":true}`); !strings.Contains(got, cutErrorPrefix) || strings.Contains(got, "[DONE]") {
					t.Errorf("%s: %q", path, got)
				}
			})
		}
		<-running
		<-running
		e.die()
		wg.Wait()
		// The cut made the server probe the engine, long before the next health
		// check.
		f.waitForReady(false)
		waitFor(t, f.refusesConnections)
	})
}

// TestDeadEngineIsNamed checks that the log names an engine that is found dead by a request that it
// refuses, as it names one found dead by a health check.
func TestDeadEngineIsNamed(t *testing.T) {
	var log testkit.Log
	runServer(t, func(c *Config) { c.HealthInterval, c.Logger = time.Hour, log.Logger() }, func(t *testing.T, e *engine, f *testServer) {
		e.die()
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "503 1 ") {
			t.Error(got)
		}
		waitFor(t, func() bool { return log.Count("engine stopped answering") > 0 })
		time.Sleep(time.Minute)
		if n := log.Count("engine stopped answering"); n != 1 {
			t.Errorf("the log names the fault %d times:\n%s", n, &log)
		}
	})
}

// TestEngineThatHasNotAnswered checks that the log names the address of an engine that does not answer when its
// server starts, once, and only if it takes long.
func TestEngineThatHasNotAnswered(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		named int
	}{{2 * time.Second, 0}, {8 * time.Second, 1}} {
		runInBubble(t, test.after.String(), func(t *testing.T) {
			var log testkit.Log
			e := newEngine(t)
			e.unhealthy.Store(true)
			time.AfterFunc(test.after, func() { e.unhealthy.Store(false) })
			startServer(t, e.URL, func(c *Config) { c.Logger = log.Logger() })
			if n := log.Count("engine has passed no health check since the start"); n != test.named || n > 0 && log.Count(e.URL) == 0 {
				t.Errorf("the log names the engine %d times, want %d with its address:\n%s", n, test.named, &log)
			}
		})
	}
}

// TestMismatchedFromTheStart checks that the log does not also name as away an engine that was not the one of
// the fleet file when its server started, and is then restarted.
func TestMismatchedFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		e, s := newEngine(t), &statingEngine{now: stated{model: "other", context: 4096}}
		e.pass(s.answer)
		time.AfterFunc(2*time.Second, func() { e.unhealthy.Store(true) })
		time.AfterFunc(8*time.Second, func() {
			s.set(expected)
			e.unhealthy.Store(false)
		})
		startServer(t, e.URL, func(c *Config) { c.Model, c.Context, c.Logger = "m", 4096, log.Logger() })
		if log.Count("does not match") != 1 || log.Count("health check") != 0 {
			t.Errorf("the log is %s", &log)
		}
	})
}

const (
	streamedChat = `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":20,"stream":true}`
	wholeChat    = `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":20}`
)

// TestRefusedTokenIDs checks an engine that refuses return_token_ids with streaming chats. Clients get the answers that it
// gives without; these requests cannot move, and the log and the status say so. Other requests are not concerned.
func TestRefusedTokenIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		f := newFleet(t, 1, configured(func(c *Config) { c.Logger = log.Logger() }))
		srv, e := f.servers[0], f.engines[0]
		e.refusesIDs.Store(true)
		const path = "/v1/chat/completions"
		for i, body := range []string{streamedChat, wholeChat, streamedChat, wholeChat} {
			want, before := f.directAnswer(path, body), e.calls.Load()
			if _, got := srv.post(path, body); withoutIDs(got) != withoutIDs(want) {
				t.Errorf("request %d:\n got %s\nwant %s", i, got, want)
			}
			if n := e.calls.Load() - before; n != 1 && i > 0 {
				t.Errorf("request %d was sent %d times", i, n)
			}
		}
		if got := srv.Status().Engine.RefusesTokenIDs; len(got) != 1 || got[0] != path || log.Count("refuses return_token_ids") != 1 {
			t.Errorf("%q is known, and logged:\n%s", got, &log)
		}
		proceed := e.blockAt(3)
		answer := srv.call("POST", path, streamedChat)
		waitFor(t, func() bool { return len(srv.LocalLegs()) == 1 && srv.LocalLegs()[0].Request.Output > 0 })
		if leg := srv.LocalLegs()[0]; leg.Pinned == policies.NotPinned || !leg.Request.Features.Has(policies.HiddenTokens) {
			t.Errorf("a chat without ids can move: %+v", leg)
		}
		close(proceed)
		<-answer
		if resp, body := srv.post(path, strings.Replace(streamedChat, "{", `{"return_token_ids":true,`, 1)); resp.StatusCode != 400 {
			t.Errorf("a client that asks for ids itself gets %s: %s", resp.Status, body)
		}
		srv.post("/v1/completions", longRequest)
		if !strings.Contains(*e.body.Load(), `"return_token_ids":true`) {
			t.Errorf("completions are sent without: %s", *e.body.Load())
		}
		e.refusesIDs.Store(false)
		srv.restart(e, nil)
		srv.post(path, streamedChat)
		if got := srv.Status().Engine.RefusesTokenIDs; len(got) != 0 || !strings.Contains(*e.body.Load(), `"return_token_ids":true`) {
			t.Errorf("of an engine that has started anew, %q is known", got)
		}
	})
}

// TestRefusedTokenIDsOfPeer checks a chat that is placed at a peer whose engine refuses return_token_ids.
func TestRefusedTokenIDsOfPeer(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.placers[0].sendTo(f.target(1))
		f.engines[1].refusesIDs.Store(true)
		f.ask("/v1/chat/completions", streamedChat)
	}, places)
}

// TestQuotedTokenIDs checks that an engine which quotes a request in an error is not taken for one that refuses
// return_token_ids: one bad request would pin all others.
func TestQuotedTokenIDs(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			body := testkit.Must(io.ReadAll(r.Body))
			w.WriteHeader(422)
			w.Write(append([]byte("bad temperature in "), body...))
			time.Sleep(time.Millisecond)
		})
		resp, got := f.post("/v1/chat/completions", streamedChat)
		if resp.StatusCode != 422 || !strings.HasPrefix(got, "bad temperature") || len(f.Status().Engine.RefusesTokenIDs) != 0 {
			t.Errorf("%s: %s; %q", resp.Status, got, f.Status().Engine.RefusesTokenIDs)
		}
	})
}

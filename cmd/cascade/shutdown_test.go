package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// longStream opens a stream and reads its first event; 300 tokens take two seconds.
func longStream(t *testing.T, address string, tokens int) (events *bufio.Scanner, leave func()) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"llama","prompt":"Once upon a time","max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`, tokens)
	resp, err := scripts.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(body))
	testkit.NoError(t, err)
	leave = func() { resp.Body.Close() }
	t.Cleanup(leave)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("the stream answers %s", resp.Status)
	}
	events = bufio.NewScanner(resp.Body)
	if !events.Scan() {
		t.Fatalf("no event: %v", events.Err())
	}
	return events, leave
}

// TestStreamsOutliveSignal stops the process that owns a stream: the stream ends normally, no new
// request is accepted, and the process exits with code 0.
func TestStreamsOutliveSignal(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string]func(t *testing.T, s site) (owner *running, address string){
		"up": func(t *testing.T, s site) (*running, string) {
			return start(t, "up", "-c", s.file), s.proxy
		},
		"migrator": func(t *testing.T, s site) (*running, string) {
			start(t, "engine", "-c", s.file, "--replica", "r0")
			return start(t, "migrator", "-c", s.file, "--replica", "r0", "--log", "error"), s.front
		},
		"proxy": func(t *testing.T, s site) (*running, string) {
			start(t, "engine", "-c", s.file, "--replica", "r0")
			start(t, "migrator", "-c", s.file, "--replica", "r0", "--log", "error")
			start(t, "control", "-c", s.file)
			return start(t, "proxy", "-c", s.file, "--log", "error"), s.proxy
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "")
			owner, address := parts(t, s)
			awaitURL(t, "http://"+address+"/v1/models", "llama")
			events, _ := longStream(t, address, 300)
			_, leave := longStream(t, address, 8000) // runs until new requests are refused
			owner.stop()
			testkit.WaitFor(t, "the refusal of new requests", func() bool {
				resp, err := scripts.Get("http://" + address + "/v1/models")
				if err == nil {
					resp.Body.Close()
				}
				return err != nil
			})
			leave()
			last := ""
			for events.Scan() {
				if text := events.Text(); text != "" {
					if strings.Contains(text, `"usage":{`) && !strings.Contains(text, `"completion_tokens":300`) {
						t.Errorf("the stream was cut short: %s", text)
					}
					last = text
				}
			}
			if err := events.Err(); err != nil || last != "data: [DONE]" {
				t.Errorf("the stream ended with %q, %v", last, err)
			}
			owner.end()
		})
	}
}

// TestUpRefusesUnsupportedEdits edits the fleet file of a running fleet.
func TestUpRefusesUnsupportedEdits(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	up := start(t, "up", "-c", s.file)
	up.await("Ctrl-C ends it")

	s.write(t, "speed: fast")
	up.await("fleet file rejected, keeping the last valid one.*fast")
	moved := s
	moved.front, moved.peers = s.peers, s.front
	moved.write(t, "")
	up.await(`replica r0 runs in this process: only ..drain.. can change`)
	s.write(t, "planner: {utilisation: 0.5}")
	up.await("fleet file has changes that need a restart; only changes of replicas were applied")
	s.write(t, `- {id: r9, address: "127.0.0.1:9", peer: "127.0.0.1:10", engine: "http://127.0.0.1:11"}`)
	awaitURL(t, "http://"+s.admin+"/status", `"id": "r9"`)

	s.sendRequest(t)
}

// TestUpFailsWithDataPlane checks that the fleet ends with an error when its Envoy ends.
func TestUpFailsWithDataPlane(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	if code, text := runFor(t.Context(), "up", "-c", s.file, "--envoy", "/bin/false"); code != 1 || !strings.Contains(text, "envoy /bin/false: ") {
		t.Errorf("code %d, it says %q", code, text)
	}
}

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestEndpointsWithV1 checks that an endpoint may be written as clients of OpenAI's API write it.
func TestEndpointsWithV1(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://h:8000": "http://h:8000", "http://h:8000/": "http://h:8000", "http://h:8000/v1": "http://h:8000", "https://h/v1/": "https://h",
		"http://h/team/v1": "http://h/team", "http://h/v1/v1": "http://h/v1", "http://h/dev1": "http://h/dev1", "http://v1": "http://v1",
	} {
		if got := testkit.Must(parseEndpoint(&cobra.Command{}, "ENDPOINT", text, "h:8000")); got != want {
			t.Errorf("%s: %s, not %s", text, got, want)
		}
	}
	_, err := parseEndpoint(&cobra.Command{}, "ENDPOINT", "h:8000/v1", "h:8000")
	testkit.WantError(t, err, "is not a base URL such as http://h:8000")
}

// TestConnectionCut checks that the error of a closed connection does not suggest to start a control
// plane.
func TestConnectionCut(t *testing.T) {
	for name, said := range map[string]string{"no answer": "", "half an answer": "HTTP/1.1 200 OK\r\n"} {
		for _, document := range []string{"", "{}"} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			testkit.NoError(t, err)
			served := make(chan error, 1)
			go func() { served <- cutAfter(l, said) }()
			base := &url.URL{Scheme: "http", Host: l.Addr().String()}
			r := controlRequest{base: base, method: http.MethodPost, path: "/drain"}
			if document != "" {
				r.document = []byte(document)
			}
			_, err = r.send(t.Context())
			if err == nil || !strings.Contains(err.Error(), "closed the connection: ") || strings.Contains(err.Error(), "start one") {
				t.Errorf("%s, document %q: %v", name, document, err)
			}
			l.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
			r.document = nil
			_, err = r.send(t.Context())
			if err == nil || !strings.Contains(err.Error(), "start one") {
				t.Errorf("no server: %v", err)
			}
		}
	}
}

// cutAfter reads the request, writes said and closes the connection without a reset.
func cutAfter(l net.Listener, said string) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	_, err = io.WriteString(c, said)
	return err
}

// TestWatchInPipe checks that what is repeated into a pipe has no control sequences of terminals.
func TestWatchInPipe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 2 {
			cancel()
		}
		io.WriteString(w, `{"migrations": []}`)
	}))
	defer server.Close()
	var out, errs strings.Builder
	code := run(ctx, []string{"migrations", "--watch", "--every", "100ms", "--control", server.URL}, &out, &errs)
	if n := strings.Count(out.String(), "No request has migrated yet."); code != 0 || n < 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("code %d, %d outputs: %q, %q", code, n, out.String(), errs.String())
	}
}

package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestConnectionCut checks that the error of a closed connection does not suggest to start a control
// plane.
func TestConnectionCut(t *testing.T) {
	for name, said := range map[string]string{"no answer": "", "half an answer": "HTTP/1.1 200 OK\r\n"} {
		for _, document := range []string{"", "{}"} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
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

package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

var update = flag.Bool("update", false, "write the expected output of scripts anew")

// TestStatusWatch repeats the status until it is interrupted, although the control plane fails once.
func TestStatusWatch(t *testing.T) {
	looks := make(chan int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, ok := <-looks
		if !ok || n == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"epoch":42,"policy":"default"}`)
	}))
	defer server.Close()
	defer close(looks)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, code := new(testkit.Log), make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"status", "--watch", "--every", "100ms", "--control", server.URL}, out, out)
	}()
	for n := range 4 {
		select {
		case looks <- n + 1:
		case <-time.After(patience):
			t.Fatal("it does not look again")
		}
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("code %d", c)
	}
	text := out.String()
	if n := strings.Count(text, "epoch 42"); n < 2 || !strings.Contains(text, "503 Service Unavailable") {
		t.Errorf("shown %d times:\n%s", n, text)
	}
}

// TestDescribeEngine checks what the status says of the prompts that an engine has cached.
func TestDescribeEngine(t *testing.T) {
	for want, known := range map[string]loadreport.KnownPrefixes{
		"": {}, "no block known to be cached": {Source: "none"},
		"1 block known to be cached, by its KV events":      {Source: "events", Blocks: 1},
		"20 blocks known to be cached, by what it was sent": {Source: "own", Blocks: 20},
	} {
		if got := describeEngine(control.Replica{KnownPrefixes: known}); got != want {
			t.Errorf("%+v: %q, want %q", known, got, want)
		}
	}
}

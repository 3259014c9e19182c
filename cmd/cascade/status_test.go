package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
		fmt.Fprint(w, `{"nodes":[{"id":"edge","connected":true,"epoch":42}]}`)
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

// TestFailover has the control plane that a command asks again and again go away: it asks the other one.
func TestFailover(t *testing.T) {
	for name, args := range map[string][]string{"status": {"--watch", "--every", "100ms"}, "drain": {"r0", "--wait"}} {
		t.Run(name, func(t *testing.T) {
			var gone atomic.Bool
			first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if gone.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				gone.Store(r.URL.Path != "/healthz")
				fmt.Fprint(w, `{"id": "r0", "connected": true, "residents": 1}`)
			}))
			defer first.Close()
			second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"nodes": [{"id": "edge", "connected": true, "epoch": 42}],
					"models": [{"name": "m", "unassigned": [{"id": "r0", "connected": true, "report_age_seconds": 0.1}]}]}`)
			}))
			defer second.Close()
			ctx, stop := context.WithCancel(t.Context())
			out, code := new(testkit.Log), make(chan int, 1)
			go func() {
				code <- run(ctx, append([]string{name, "--control", first.URL + "," + second.URL}, args...), out, out)
			}()
			want := map[string]string{"status": "epoch 42", "drain": "r0: empty"}[name]
			testkit.WaitFor(t, "the answer of the second control plane", func() bool { return out.Count(want) > 0 })
			stop()
			if c := <-code; c != 0 {
				t.Errorf("code %d:\n%s", c, out)
			}
		})
	}
}

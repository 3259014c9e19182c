package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestDrainInterrupted interrupts a wait. Script drain.txt has the rest.
func TestDrainInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/status" {
			stop()
		}
		fmt.Fprint(w, `{"id": "mute"}`)
	}))
	defer server.Close()
	out := new(testkit.Log)
	code := run(ctx, []string{"drain", "mute", "--wait", "--control", server.URL}, out, out)
	if text := out.String(); code != 1 || !strings.Contains(text, "mute: interrupted") {
		t.Errorf("code %d, %s", code, text)
	}
}

// TestDrainUnanswered checks that a control plane that does not respond has another error than a
// missing one.
func TestDrainUnanswered(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	out := new(testkit.Log)
	code := run(ctx, []string{"drain", "busy", "--control", server.URL}, out, out)
	if text := out.String(); code != 1 || !strings.Contains(text, "did not answer") || strings.Contains(text, "cascade up") {
		t.Errorf("code %d, %s", code, text)
	}
}

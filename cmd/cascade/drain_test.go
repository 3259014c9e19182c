package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
	code, text := runFor(ctx, "drain", "mute", "--wait", "--control", server.URL)
	if code != 1 || !strings.Contains(text, "mute: interrupted") {
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
	code, text := runFor(ctx, "drain", "busy", "--control", server.URL)
	if code != 1 || !strings.Contains(text, "did not answer") || strings.Contains(text, "cascade up") {
		t.Errorf("code %d, %s", code, text)
	}
}

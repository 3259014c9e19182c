package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestRun keeps the example from rotting: chats and documents get stages of their own.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "stage ") < 3 || !strings.Contains(got, "∞") {
		t.Errorf("no separate stages:\n%s", got)
	}
}

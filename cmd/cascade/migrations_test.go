package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/xds/control"
)

// allMoves has every case that the table distinguishes.
func allMoves() control.Migrations {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return control.Migrations{Migrations: []control.Migration{
		{ID: "a/3", Request: "a/17", Cause: "drain", Frontend: "a", From: "a", To: "c", Method: "live", Transport: "shm", State: "pulling", Rounds: 1, Tokens: 65536, Bytes: 5 << 30, Seconds: 0.04, Started: &began},
		{ID: "a/2", Request: "b/9", Cause: "growth", Frontend: "b", From: "a", To: "c", Method: "live", Transport: "tcp", State: "done", Rounds: 3, Tokens: 9001, Bytes: 700 << 20, Stall: 0.00123, Seconds: 0.31, Started: &began},
		{ID: "a/1", Request: "a/4", Cause: "engine lost", Frontend: "a", From: "b", To: "a", Method: "reprompt", State: "done", Tokens: 512, Stall: 1.25, Seconds: 1.3},
		{ID: "b/8", Request: "b/7", Cause: "outlier", Frontend: "b", From: "b", To: "c", Method: "live", Transport: "shm", State: "aborted", Reason: "the request ended", Rounds: 2, Tokens: 300, Bytes: 1000, Seconds: 12},
	}}
}

func TestMigrationsTable(t *testing.T) {
	var got bytes.Buffer
	m := allMoves()
	if err := writeMigrations(&got, m); err != nil {
		t.Fatal(err)
	}
	// The table shows local time.
	text := strings.ReplaceAll(got.String(), m.Migrations[0].Started.Local().Format(time.TimeOnly), "03:04:05")
	golden := filepath.Join("testdata", "migrations.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Error(diff)
	}
}

func TestMigrations(t *testing.T) {
	moves := allMoves()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/migrations" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if r.URL.Query().Get("limit") == "1" {
			moves.Migrations = nil
		}
		json.NewEncoder(w).Encode(moves)
	}))
	defer server.Close()
	if code, out, errs := command(t.Context(), "migrations", "--control", server.URL); code != 0 || !strings.Contains(out, "4 migrations: 2 done") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	code, out, errs := command(t.Context(), "migrations", "--control", server.URL, "--json")
	var back control.Migrations
	if err := json.Unmarshal([]byte(out), &back); code != 0 || err != nil || len(back.Migrations) != 4 {
		t.Errorf("code %d, %v, %s%s", code, err, out, errs)
	}
	if code, out, errs := command(t.Context(), "migrations", "--control", server.URL, "--limit", "1"); code != 0 || out != "No request has migrated yet.\n" {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	if code, _, errs := command(t.Context(), "migrations", "--limit", "513"); code != 2 || !strings.Contains(errs, "--limit 513: 1 to 512") {
		t.Errorf("code %d, %s", code, errs)
	}
	if code, _, errs := command(t.Context(), "migrations", "--control", server.URL+"/x"); code != 1 || !strings.Contains(errs, "answered 404 Not Found, which is not a control plane's response") {
		t.Errorf("code %d, %s", code, errs)
	}
}

func TestUnits(t *testing.T) {
	for got, want := range map[string]string{
		formatBytes(0): "–", formatBytes(1000): "1.0 KiB", formatBytes(5 << 20): "5.0 MiB", formatBytes(3 << 29): "1.50 GiB",
		formatSeconds(0): "–", formatSeconds(0.00123): "1.23 ms", formatSeconds(2): "2 s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package kvport

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestOutage checks that a short outage logs no warning and a long one logs exactly
// one.
func TestOutage(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	begin := time.Unix(1e9, 0)
	for _, c := range []struct {
		at   time.Duration
		want int // warnings of this outage so far
	}{{0, 0}, {warnAfter - 1, 0}, {warnAfter, 1}, {time.Hour, 1}} {
		out.Reset()
		var a outage
		for at := time.Duration(0); at <= c.at; at += max(c.at/4, 1) {
			a.log(begin.Add(at), log, "d", errors.New("connection refused"))
		}
		a.log(begin.Add(c.at), log, "d", errors.New("connection refused"))
		if got := strings.Count(out.String(), "level=WARN"); got != c.want {
			t.Errorf("after %v: %d warnings, want %d:\n%s", c.at, got, c.want, out.String())
		}
	}
}

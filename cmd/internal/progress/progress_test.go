package progress

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestBar checks that carriage returns are written to terminals only, and that all bars end with a line's end.
func TestBar(t *testing.T) {
	file := testkit.Must(os.Create(filepath.Join(t.TempDir(), "log")))
	defer file.Close()
	if isTerminal(file) || isTerminal(&bytes.Buffer{}) {
		t.Error("a file and a buffer are terminals")
	}
	for _, c := range []struct {
		total, done int
		terminal    bool
		want        string // of a terminal: part of it
	}{
		{10, 10, false, "test           10/10\n"},
		{10, 4, false, "test           4/10\n"},
		{-1, 4, false, "test           4\n"},
		{0, 0, false, "test           0/0\n"},
		{10, 10, true, "100%"},
		{10, 4, true, "20%"}, // the rest is within 200 ms
	} {
		var out bytes.Buffer
		b := newBar(&out, "test", c.total, c.terminal)
		b.Set(c.done - c.done/2)
		b.Clear()
		b.Describe("other")
		b.Add(c.done / 2)
		b.End()
		got := out.String()
		if !c.terminal && got != c.want || !strings.Contains(got, c.want) || strings.Contains(got, "\r") != c.terminal || !strings.HasSuffix(got, "\n") {
			t.Errorf("%+v: %q", c, got)
		}
		if c.terminal && c.done < c.total && strings.Contains(got, "100%") {
			t.Errorf("interrupted at %d of %d: %q", c.done, c.total, got)
		}
	}
}

package auditlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLog(t *testing.T, path string) *Log {
	t.Helper()
	return testkit.Must(New(Config{Path: path, Control: "a"}))
}

// order is a record with a number.
func order(n int) Record { return Record{Action: "drain", Object: fmt.Sprint(n), Outcome: Done} }

// read returns the records of a file, each of which must be one line.
func read(t *testing.T, path string) (out []Record) {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	testkit.NoError(t, err)
	for line := range bytes.Lines(text) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, r)
	}
	return out
}

func waitForRecords(t *testing.T, path string, n int) []Record {
	t.Helper()
	return testkit.WaitForValue(t, fmt.Sprintf("%d records in %s", n, path), func() []Record { return read(t, path) }, func(r []Record) bool { return len(r) == n })
}

// TestRecords: records are appended as lines of JSON, to a file that only its user can read, the last ones while Run ends.
func TestRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	for i := range 2 {
		l := newLog(t, path)
		stop := testkit.Run(t, l.Run)
		l.Record(Record{Action: "plan/pin", Object: "model=m", Outcome: Done, Who: "uid 7", By: "ops@host", From: "127.0.0.1:9"})
		l.Record(order(i))
		stop()
		if n := testutil.ToFloat64(l.written); n != 2 || l.Err() != nil {
			t.Errorf("%v records written, %v", n, l.Err())
		}
	}
	got := read(t, path)
	if len(got) != 4 || got[0].Who != "uid 7" || got[0].By != "ops@host" || got[0].Control != "a" || got[3].Object != "1" || time.Since(got[3].Time) > time.Hour {
		t.Errorf("%+v", got)
	}
	if info := testkit.Must(os.Stat(path)); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

// TestRotated: after the file was renamed, with another one in its place or none, or was removed, records go to the new one.
func TestRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := newLog(t, path)
	testkit.Run(t, l.Run)
	l.Record(order(1))
	waitForRecords(t, path, 1)
	testkit.NoError(t, os.Rename(path, path+".1"))
	l.Record(order(2))
	waitForRecords(t, path, 1)
	testkit.NoError(t, os.Remove(path))
	l.Record(order(3))
	if got := waitForRecords(t, path, 1); got[0].Object != "3" {
		t.Errorf("%+v", got)
	}
	testkit.NoError(t, os.Rename(path, path+".2"))
	testkit.NoError(t, os.WriteFile(path, nil, 0o600)) // as logrotate's "create" does
	l.Record(order(4))
	if got := waitForRecords(t, path, 1); got[0].Object != "4" {
		t.Errorf("%+v", got)
	}
	for i, want := range []string{"1", "3"} {
		if got := read(t, fmt.Sprint(path, ".", i+1)); len(got) != 1 || got[0].Object != want {
			t.Errorf("renamed file %d has %+v", i+1, got)
		}
	}
}

// TestFullDisk: while the disk is full, Record does not wait, Err says why, and what the queue cannot hold is counted. When there is
// room again, what waited is written.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit")
	testkit.NoError(t, os.Symlink("/dev/full", path))
	var log testkit.Log
	l := testkit.Must(New(Config{Path: path, Logger: log.Logger()}))
	stop := testkit.Run(t, l.Run)
	const more = 10
	l.Record(order(0))
	testkit.WaitFor(t, "the disk is full", func() bool { return l.Err() != nil })
	testkit.WantError(t, l.Err(), "no space left on device")
	for i := range queueLength + more {
		l.Record(order(i + 1))
	}
	if n := testutil.ToFloat64(l.dropped); n != more {
		t.Errorf("%v records dropped, want %d", n, more)
	}
	testkit.NoError(t, os.Symlink(filepath.Join(dir, "room"), path+".new"))
	testkit.NoError(t, os.Rename(path+".new", path))
	got := waitForRecords(t, filepath.Join(dir, "room"), queueLength+1)
	if got[0].Object != "0" || got[queueLength].Object != fmt.Sprint(queueLength) {
		t.Errorf("from %+v to %+v", got[0], got[queueLength])
	}
	testkit.WantError(t, l.Err(), "lacks records")
	stop()
	if log.Count("audit log not written") != 1 || log.Count("written again") != 1 {
		t.Errorf("log:\n%s", &log)
	}
}

// TestFullToTheEnd: records that a full disk keeps from being written until Run ends are counted.
func TestFullToTheEnd(t *testing.T) {
	l := newLog(t, "/dev/full")
	for i := range 5 {
		l.Record(order(i))
	}
	testkit.Run(t, l.Run)()
	if n := testutil.ToFloat64(l.dropped); n != 5 {
		t.Errorf("%v records dropped, want 5", n)
	}
}

// TestHungDisk: a file that does not answer delays neither Record nor the end of Run, and Err says so.
func TestHungDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	testkit.NoError(t, syscall.Mkfifo(path, 0o600)) // without a reader: to open it hangs
	l := newLog(t, path)
	l.hangs = 10 * time.Millisecond
	stop := testkit.Run(t, l.Run)
	for i := range queueLength / 2 {
		l.Record(order(i))
	}
	testkit.WaitFor(t, "the disk hangs", func() bool { return l.Err() != nil })
	testkit.WantError(t, l.Err(), "has not answered")
	begun := time.Now()
	stop()
	if took := time.Since(begun); took < flushTime || took > flushTime+30*time.Second {
		t.Errorf("Run took %v to end", took)
	}
	// The disk is back: what waited is written.
	pipe := testkit.Must(os.Open(path))
	defer pipe.Close()
	lines := 0
	for s := bufio.NewScanner(pipe); s.Scan(); {
		lines++
	}
	if lines != queueLength/2 {
		t.Errorf("%d lines, want %d", lines, queueLength/2)
	}
}

// TestTornLine: after a part of a line was written, the whole one begins a line of its own.
func TestTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l := newLog(t, path)
	testkit.NoError(t, l.append([]byte(`{"action":"half`)))
	l.torn = true
	testkit.NoError(t, l.append(order(1).line()))
	testkit.NoError(t, l.append(order(2).line()))
	l.close()
	if lines := strings.Split(string(testkit.Must(os.ReadFile(path))), "\n"); len(lines) != 4 || lines[0] != `{"action":"half` || !strings.Contains(lines[1], `"object":"1"`) || !strings.Contains(lines[2], `"object":"2"`) {
		t.Errorf("%q", lines)
	}
}

// TestTornBefore: what another process left half-written is no part of the first record.
func TestTornBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	testkit.NoError(t, os.WriteFile(path, []byte(`{"action":"half`), 0o600))
	for n := range 2 { // the second process finds whole lines
		l := newLog(t, path)
		testkit.NoError(t, l.append(order(n).line()))
		l.close()
	}
	if lines := strings.Split(string(testkit.Must(os.ReadFile(path))), "\n"); len(lines) != 4 || lines[0] != `{"action":"half` || !strings.Contains(lines[1], `"object":"0"`) || !strings.Contains(lines[2], `"object":"1"`) {
		t.Errorf("%q", lines)
	}
}

// TestManyRefusals: a client that is refused again and again neither fills the disk nor drives out orders.
func TestManyRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t, "unused")
		refused := Record{Action: Client, Outcome: Refused}
		for range 2 * maxRefusals {
			l.Record(refused)
		}
		l.Record(order(1))
		l.Record(Record{Action: "drain", Outcome: Refused}) // strangers cannot hide it
		if n, waiting := testutil.ToFloat64(l.dropped), len(l.queue); n != maxRefusals || waiting != maxRefusals+2 {
			t.Errorf("%v dropped, %d waiting", n, waiting)
		}
		time.Sleep(refusalWindow)
		l.Record(refused)
		if waiting := len(l.queue); waiting != maxRefusals+3 {
			t.Errorf("a minute later %d wait", waiting)
		}
		testkit.WantError(t, l.Err(), "lacks records")
		time.Sleep(lossShown)
		testkit.NoError(t, l.Err())
	})
}

// TestHostileNames: what a client chose begins no line, hides nothing in a terminal, and has a bounded size.
func TestHostileNames(t *testing.T) {
	r := Record{Action: "drain", Outcome: Refused, Object: "r0\n{\"action\":\"drain\"}\x1b[2J\u202e\u009b", Who: strings.Repeat("ü", maxText), From: "\xff"}
	line := string(r.bounded().line())
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "}\n") || strings.ContainsAny(line, "\x1b\u202e\u009b") {
		t.Errorf("%q", line)
	}
	var back Record
	testkit.NoError(t, json.Unmarshal([]byte(line), &back))
	if want := "r0\n{\"action\":\"drain\"}\ufffd[2J\ufffd\ufffd"; back.Object != want || back.From != "\ufffd" || back.Who != strings.Repeat("ü", maxText/2)+"…" {
		t.Errorf("%+q", back)
	}
}

// TestNone: without a log, nothing is recorded and nothing is wrong.
func TestNone(t *testing.T) {
	var l *Log
	l.Record(order(1))
	testkit.NoError(t, l.Err())
	testkit.Run(t, l.Run)()
	_, err := New(Config{})
	testkit.WantError(t, err, "Path")
}

// TestMetrics: both counters exist from the start, and follow Prometheus's conventions.
func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newLog(t, "unused"))
	problems, err := testutil.GatherAndLint(r)
	if n := testkit.Must(testutil.GatherAndCount(r, "cascade_audit_records_total", "cascade_audit_records_dropped_total")); n != 2 || err != nil || len(problems) > 0 {
		t.Errorf("%d metrics, %v, %v", n, problems, err)
	}
}

// FuzzLine: whatever the texts are, a record is one line of JSON that says the same.
func FuzzLine(f *testing.F) {
	f.Add("drain", "replica=r0", "not\nadmitted", "uid 1", "ops", "127.0.0.1:1")
	f.Add("\u2028", "\x00", "</script>", "\xc3", "…", strings.Repeat("x", 2*maxText))
	f.Fuzz(func(t *testing.T, action, object, reason, who, by, from string) {
		r := Record{Action: action, Object: object, Outcome: Failed, Reason: reason, Who: who, By: by, From: from}.bounded()
		line := r.line()
		if n := bytes.Count(line, []byte("\n")); n != 1 || len(line) > 8*6*(maxText+8) {
			t.Fatalf("%d bytes with %d ends of line: %q", len(line), n, line)
		}
		var back Record
		if err := json.Unmarshal(line, &back); err != nil || back != r {
			t.Errorf("%q is read as %+q, %v", line, back, err)
		}
	})
}

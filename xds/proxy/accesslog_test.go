package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestAccessLog: with an access log in the plan, each request is one line of
// JSON with the id that its replica sees, whether a replica has answered it or not.
func TestAccessLog(t *testing.T) {
	f := newFleet(t, 2, nil)
	path := filepath.Join(t.TempDir(), "access.log")
	v := f.view
	v.Settings.AccessLog = path
	f.publish(v, nil)
	_, seen := f.see("POST", "/v1/x?y=z", "", bytes.NewReader(prompt("m", 100)))
	f.send("POST", "/status/418", "", bytes.NewReader(prompt("m", 100)))
	f.fronts[0].kill()
	f.fronts[1].kill()
	f.send("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	f.stop() // a line is written after its answer
	text := string(testkit.Must(os.ReadFile(path)))
	var lines []accessRecord
	for line := range strings.Lines(text) {
		var r accessRecord
		testkit.NoError(t, json.Unmarshal([]byte(line), &r))
		lines = append(lines, r)
	}
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), text)
	}
	first := lines[0]
	if first.ID == "" || first.ID != seen.Header.Get("X-Request-Id") || first.Status != 200 || first.Method != "POST" || first.Path != "/v1/x?y=z" ||
		first.Cluster != "cascade/m/s0/rr" || first.Attempts != 1 || first.Upstream == "" || first.Model != "m" || first.Tokens != "25" || first.Start == "" {
		t.Errorf("%+v, want id %s", first, seen.Header.Get("X-Request-Id"))
	}
	if lines[1].Status != 418 || lines[2].Status != 503 || lines[2].ID == "" || lines[2].ID == first.ID {
		t.Errorf("%s", text)
	}
}

// TestAccessLogFails: a file that cannot be written is logged once, and fails no request.
func TestAccessLogFails(t *testing.T) {
	var log testkit.Log
	drops := prometheus.NewCounter(prometheus.CounterOpts{Name: "drops"})
	a := newAccessLog(log.Logger(), drops)
	go a.run()
	path := filepath.Join(t.TempDir(), "missing", "access.log")
	for range 3 {
		a.write(path, accessRecord{})
	}
	a.close()
	if n := log.Count("access log not written"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	if n := testutil.ToFloat64(drops); n != 3 {
		t.Errorf("%v lines were dropped, want 3", n)
	}
}

// hungFile blocks writes until it is released.
type hungFile struct {
	bytes.Buffer
	began, release chan struct{}
}

func (f *hungFile) Write(b []byte) (int, error) {
	f.began <- struct{}{}
	<-f.release
	return f.Buffer.Write(b)
}

func (*hungFile) Close() error { return nil }

// TestAccessLogHangs: while the disk does not answer, requests are answered, what the queue
// cannot hold is dropped and counted, and the rest is written when the disk is back. A proxy
// that stops waits for a disk for a bounded time.
func TestAccessLogHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		drops := prometheus.NewCounter(prometheus.CounterOpts{Name: "drops"})
		a := newAccessLog(log.Logger(), drops)
		file := &hungFile{began: make(chan struct{}), release: make(chan struct{})}
		a.open = func(string) (io.WriteCloser, error) { return file, nil }
		go a.run()
		a.write("f", accessRecord{})
		<-file.began
		for range accessQueue + 10 {
			a.write("f", accessRecord{}) // would deadlock here, virtual time or not
		}
		if n := testutil.ToFloat64(drops); n != 10 {
			t.Errorf("%v lines were dropped, want 10", n)
		}
		begun := time.Now()
		a.close()
		if took := time.Since(begun); took != flushTime || log.Count("disk does not answer") != 1 {
			t.Errorf("stopping took %v:\n%s", took, &log)
		}
		go func() {
			for range file.began {
			}
		}()
		close(file.release)
		<-a.ended
		close(file.began)
		if n := bytes.Count(file.Bytes(), []byte("\n")); n != accessQueue+1 || log.Count("lines of the access log dropped") != 1 {
			t.Errorf("%d lines were written, want %d:\n%s", n, accessQueue+1, &log)
		}
	})
}

// TestAccessRecordIsBounded checks that a record of what clients choose is small: thousands wait for a
// disk that hangs.
func TestAccessRecordIsBounded(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	x := exchange{r: httptest.NewRequest(long, "/v1/models?"+long, nil), header: make(http.Header)}
	x.header.Set("X-Request-Id", long)
	x.header.Set(length.ModelHeader, long)
	if line := testkit.Must(json.Marshal(x.accessRecord(time.Now()))); len(line) > 4*maxAccessText+256 || !bytes.Contains(line, []byte(`"path":"/v1/models?x`)) {
		t.Errorf("a line of %d bytes: %.200s", len(line), line)
	}
}

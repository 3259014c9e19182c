package proxy

import (
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
)

// accessLog writes one JSON object per request to the files that listeners name, with the
// fields of Envoy's access log. A file is opened again a minute after it could not be
// written, so that a full disk ends no log for good; rotate it by copying and truncating.
// The zero accessLog has no files open.
type accessLog struct {
	mu    sync.Mutex
	files map[string]*logFile // by path
}

// logFile is a file of the access log; its os.File is nil after a failure.
type logFile struct {
	file   *os.File
	failed time.Time
}

// reopenAfter is the time from a failure to the next attempt.
const reopenAfter = time.Minute

// accessRecord is one line.
type accessRecord struct {
	Start    string `json:"start"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Status   int    `json:"status"`
	Millis   int64  `json:"ms"`
	Route    string `json:"route,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Upstream string `json:"upstream,omitempty"`
	Attempts int    `json:"attempts"`
	Model    string `json:"model,omitempty"`
	Tokens   string `json:"tokens,omitempty"`
	ID       string `json:"id,omitempty"`
}

// accessRecord returns the line of a request that has ended.
func (x *exchange) accessRecord(now time.Time) accessRecord {
	r := accessRecord{
		Start: x.begun.UTC().Format(time.RFC3339Nano), Method: x.r.Method, Path: x.r.URL.RequestURI(), Status: x.code, Millis: now.Sub(x.begun).Milliseconds(),
		Upstream: x.upstream, Attempts: x.attempts, Model: x.header.Get(length.ModelHeader), Tokens: x.header.Get(length.TokensHeader), ID: x.header.Get("X-Request-Id"),
	}
	if x.route != nil {
		r.Route, r.Cluster = x.route.Name, x.route.Cluster
	}
	return r
}

// write appends a line to a file. It logs that it cannot, and drops lines meanwhile.
func (a *accessLog) write(path string, r accessRecord, log *slog.Logger) {
	line, err := json.Marshal(r)
	if err != nil {
		panic("internal error: encode an access record: " + err.Error())
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.files == nil {
		a.files = make(map[string]*logFile)
	}
	f := a.files[path]
	if f == nil {
		f = &logFile{}
		a.files[path] = f
	}
	if f.file == nil {
		if now.Sub(f.failed) < reopenAfter {
			return
		}
		f.file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	}
	if err == nil {
		_, err = f.file.Write(append(line, '\n'))
	}
	if err != nil {
		log.Error("access log not written; retrying in a minute", "file", path, "error", err)
		f.close()
		f.failed = now
	}
}

func (f *logFile) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// close closes the files.
func (a *accessLog) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.files {
		f.close()
	}
	a.files = nil
}

package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/policies/length"
)

// accessLog writes one JSON object per request to the file that the plan names, with the
// fields of Envoy's access log. A file is opened again a minute after it could not be
// written, so that a full disk ends no log for good; rotate it by copying and truncating.
//
// One goroutine, run, has the files. Requests hand it their records and never wait for a
// disk: a record for which the queue has no room is dropped and counted.
type accessLog struct {
	queue chan accessEntry
	stop  chan struct{} // closed by close
	ended chan struct{} // closed when run has returned
	lost  atomic.Int64  // dropped since the last warning
	drops prometheus.Counter
	log   *slog.Logger
	open  func(path string) (io.WriteCloser, error)

	files  map[string]*logFile // by path; run's own
	warned time.Time           // run's own
}

// accessEntry is a record and the file for it.
type accessEntry struct {
	path   string
	record accessRecord
}

// logFile is a file of the access log; its file is nil after a failure.
type logFile struct {
	file   io.WriteCloser
	failed time.Time
}

const (
	// accessQueue is how many records wait for the disk at most, and maxAccessText is what a record
	// holds of each text that a client chooses, in bytes: about 2 MiB, and 8 MiB at most.
	accessQueue   = 4096
	maxAccessText = 512
	// reopenAfter is the time from a failure to the next attempt, and between two warnings.
	reopenAfter = time.Minute
	// flushTime is how long the end of the proxy waits for the disk.
	flushTime = 2 * time.Second
)

func newAccessLog(log *slog.Logger, drops prometheus.Counter) *accessLog {
	return &accessLog{
		queue: make(chan accessEntry, accessQueue), stop: make(chan struct{}), ended: make(chan struct{}),
		drops: drops, log: log, files: make(map[string]*logFile),
		open: func(path string) (io.WriteCloser, error) {
			return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		},
	}
}

// accessRecord is one line.
type accessRecord struct {
	Start    string `json:"start"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Status   int    `json:"status"`
	Millis   int64  `json:"ms"`
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
		Start: x.begun.UTC().Format(time.RFC3339Nano), Method: bounded(x.r.Method, maxAccessText),
		Path: bounded(x.r.URL.RequestURI(), maxAccessText), Status: x.code, Millis: now.Sub(x.begun).Milliseconds(),
		Upstream: x.upstream, Attempts: x.attempts, Model: bounded(x.header.Get(length.ModelHeader), maxAccessText),
		Tokens: x.header.Get(length.TokensHeader),
		ID:     bounded(x.header.Get("X-Request-Id"), maxAccessText),
	}
	if x.stage != nil {
		r.Cluster = x.stage.name
	}
	return r
}

// write hands a record to run. It does not block.
func (a *accessLog) write(path string, r accessRecord) {
	select {
	case a.queue <- accessEntry{path, r}:
	default:
		a.drop()
	}
}

func (a *accessLog) drop() {
	a.drops.Inc()
	a.lost.Add(1)
}

// run writes records until close is called and the queue is empty.
func (a *accessLog) run() {
	defer close(a.ended)
	for stop := a.stop; stop != nil || len(a.queue) > 0; {
		select {
		case e := <-a.queue:
			a.append(e, time.Now())
		case <-stop:
			stop = nil
		}
	}
	for _, f := range a.files {
		f.close()
	}
}

// close ends run when the queue is empty, and waits for that unless the disk hangs.
func (a *accessLog) close() {
	close(a.stop)
	patience := time.NewTimer(flushTime)
	defer patience.Stop()
	select {
	case <-a.ended:
	case <-patience.C:
		a.log.Error("access log not written to its end: the disk does not answer", "lines", len(a.queue))
	}
}

// append writes a line to its file. It logs that it cannot, and drops lines meanwhile.
func (a *accessLog) append(e accessEntry, now time.Time) {
	line, err := json.Marshal(e.record)
	if err != nil {
		panic("internal error: encode an access record: " + err.Error())
	}
	f := a.files[e.path]
	if f == nil {
		f = &logFile{}
		a.files[e.path] = f
	}
	if f.file == nil {
		if now.Sub(f.failed) < reopenAfter {
			a.drop()
			return
		}
		f.file, err = a.open(e.path)
	}
	if err == nil {
		_, err = f.file.Write(append(line, '\n'))
	}
	if err != nil {
		a.drop()
		a.log.Error("access log not written; retrying in a minute", "file", e.path, "error", err)
		f.close()
		f.failed = now
		return
	}
	if now.Sub(a.warned) < reopenAfter {
		return
	}
	if n := a.lost.Swap(0); n > 0 {
		a.warned = now
		a.log.Warn("lines of the access log dropped: its disk is slower than the requests, or failed", "lines", n,
			"file", e.path)
	}
}

func (f *logFile) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

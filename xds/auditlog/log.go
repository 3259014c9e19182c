// Package auditlog appends what operators, clients and the planner did to a file: one JSON object per line, so
// that it can be established later who changed a fleet, and who tried to.
//
// New returns a Log, Run writes, and Record hands it a record and never waits. A disk that is full or hangs costs
// records, which are counted, and nothing else: the queue is bounded, and its goroutine alone touches the file.
//
// Invariants: a record is written by one write, to the end of the file, so that several processes may share it; and it
// is written whole or counted as dropped. The file is opened anew when it was moved or removed, so that the host can
// rotate it by renaming.
package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// queueLength is how many records wait for the disk at most: 28 MiB of the longest.
	queueLength = 4096
	// maxRefusals is how many refusals of clients are recorded in each refusalWindow, and how many
	// other ones: who is refused chooses how often, and must not fill the disk or drive out other
	// records. Anyone who reaches a port can be refused as a client, an order only those that may
	// send one.
	maxRefusals   = 600
	refusalWindow = time.Minute
	// retryInterval is the time between two attempts to write a record.
	retryInterval = time.Second
	// hangsAfter is how long the disk may take before Err reports it.
	hangsAfter = 3 * time.Second
	// lossShown is how long after a loss Err reports it.
	lossShown = 10 * time.Minute
	// flushTime is how long the end of Run waits for the disk.
	flushTime = 2 * time.Second

	fileMode = 0o600
)

// Config configures a Log.
type Config struct {
	// Path is the file. It is created with mode 0600; its folder must exist. Required.
	Path string
	// Control is the name of the control plane, for each record.
	Control string
	// Logger logs that records cannot be written; nil discards.
	Logger *slog.Logger
}

// Log is an audit log. Its methods may be called by any goroutine; those of a nil Log do nothing.
type Log struct {
	cfg     Config
	log     *slog.Logger
	queue   chan Record
	written prometheus.Counter
	dropped prometheus.Counter
	hangs   time.Duration // hangsAfter; shorter in tests

	file *os.File // the writer's own; nil: not open
	torn bool     // the file ends with a part of a line; the writer's own

	mu        sync.Mutex
	begun     time.Time // when the operation in progress began; zero: none
	err       error     // of the last attempt; nil: it succeeded
	lostAt    time.Time // when a record was last dropped
	window    time.Time // when the count of refusals began
	refusals  [2]int    // since then: other ones, and those of clients
	announced bool      // err was logged
}

var _ prometheus.Collector = (*Log)(nil)

// New returns a Log; it opens nothing.
func New(cfg Config) (*Log, error) {
	if cfg.Path == "" {
		return nil, errors.New("audit log: Path: must not be empty")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "cascade", Subsystem: "audit", Name: name, Help: help})
	}
	return &Log{
		cfg: cfg, log: cfg.Logger, queue: make(chan Record, queueLength), hangs: hangsAfter,
		written: counter("records_total", "Records of orders, plans and refusals that were written to the audit log."),
		dropped: counter("records_dropped_total", "Records of orders, plans and refusals that are not in the audit log: its disk was full or too slow, or there were too many refusals."),
	}, nil
}

// Path returns the file.
func (l *Log) Path() string { return l.cfg.Path }

// Record hands a record to Run. It never waits: what the queue cannot hold is dropped, and so are refusals of clients
// beyond 600 a minute, and other ones beyond 600 a minute.
func (l *Log) Record(r Record) {
	if l == nil {
		return
	}
	now := time.Now()
	r.Time, r.Control = now.UTC(), l.cfg.Control
	if r.Outcome == Refused && !l.admitRefusal(now, r.Action == Client || r.Action == Stream) {
		l.drop(now)
		return
	}
	select {
	case l.queue <- r.bounded():
	default:
		l.drop(now)
	}
}

// admitRefusal counts a refusal, of a client or another one, and reports whether it is one of those
// that are recorded.
func (l *Log) admitRefusal(now time.Time, ofClient bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.window) >= refusalWindow {
		l.window, l.refusals = now, [2]int{}
	}
	n := &l.refusals[0]
	if ofClient {
		n = &l.refusals[1]
	}
	*n++
	return *n <= maxRefusals
}

func (l *Log) drop(now time.Time) {
	l.dropped.Inc()
	l.mu.Lock()
	l.lostAt = now
	l.mu.Unlock()
}

// Err returns why records are not written, or that some were lost within the last ten minutes; nil if all is well.
func (l *Log) Err() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case !l.begun.IsZero() && now.Sub(l.begun) >= l.hangs:
		return fmt.Errorf("%s has not answered for %v: repair its disk", l.cfg.Path, now.Sub(l.begun).Round(time.Second))
	case l.err != nil:
		return fmt.Errorf("%w: free space there, or correct control.audit", l.err)
	case !l.lostAt.IsZero() && now.Sub(l.lostAt) < lossShown:
		return fmt.Errorf("%s lacks records of the last %v, because there were too many, or its disk was too slow", l.cfg.Path, lossShown)
	}
	return nil
}

// Run writes records until ctx ends, and then those that wait, for as long as the disk answers within 2 s. A write that
// hangs beyond that is left to itself: nothing can end it.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.write(ctx)
	}()
	<-ctx.Done()
	flushTimer := time.NewTimer(flushTime)
	defer flushTimer.Stop()
	select {
	case <-ended:
	case <-flushTimer.C:
		l.dropped.Add(float64(len(l.queue)))
		l.log.Error("audit log not written to its end: the disk does not answer", "file", l.cfg.Path, "records", len(l.queue))
	}
	return nil
}

// write writes records until ctx has ended and none waits.
func (l *Log) write(ctx context.Context) {
	defer l.close()
	for {
		select {
		case r := <-l.queue:
			l.writeRecord(ctx, r)
			continue
		default:
		}
		select {
		case r := <-l.queue:
			l.writeRecord(ctx, r)
		case <-ctx.Done():
			if len(l.queue) == 0 {
				return
			}
		}
	}
}

// writeRecord writes a record, again and again until it succeeds. Once ctx has ended it tries once.
func (l *Log) writeRecord(ctx context.Context, r Record) {
	line := r.line()
	for {
		err := l.attempt(line)
		if err == nil {
			l.written.Inc()
			return
		}
		select {
		case <-ctx.Done():
			l.drop(time.Now())
			return
		case <-time.After(retryInterval):
		}
	}
}

// attempt appends a line, and notes how that went.
func (l *Log) attempt(line []byte) error {
	l.mu.Lock()
	l.begun = time.Now()
	l.mu.Unlock()
	err := l.append(line)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun, l.err = time.Time{}, err
	switch {
	case err != nil && !l.announced:
		l.announced = true
		l.log.Error("audit log not written; retrying every second", "file", l.cfg.Path, "error", err)
	case err == nil && l.announced:
		l.announced = false
		l.log.Info("audit log is written again", "file", l.cfg.Path)
	}
	return err
}

// append writes a line to the file at Path, which it opens if it is not open or another file is there now.
func (l *Log) append(line []byte) error {
	if l.file != nil && !l.isCurrent() {
		l.close()
	}
	if l.file == nil {
		file, err := os.OpenFile(l.cfg.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, fileMode)
		if err != nil {
			return err
		}
		l.file, l.torn = file, endsTorn(file)
	}
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.file.Write(line)
	if err != nil {
		l.torn = l.torn || n > 0
		return err
	}
	l.torn = false
	return nil
}

// endsTorn reports whether a file ends with a part of a line, as one does whose disk was full when a
// process died.
func endsTorn(file *os.File) bool {
	at, err := file.Seek(-1, io.SeekEnd) // fails for an empty file, and for what is no file
	if err != nil {
		return false
	}
	var last [1]byte
	_, err = file.ReadAt(last[:], at)
	return err == nil && last[0] != '\n'
}

// isCurrent reports whether the open file is the one at Path. A path that cannot be examined is left to the write.
func (l *Log) isCurrent() bool {
	open, err := l.file.Stat()
	if err != nil {
		return true
	}
	there, err := os.Stat(l.cfg.Path)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return os.SameFile(open, there)
}

func (l *Log) close() {
	if l.file != nil {
		l.file.Close()
		l.file, l.torn = nil, false
	}
}

// Describe implements prometheus.Collector.
func (l *Log) Describe(ch chan<- *prometheus.Desc) {
	l.written.Describe(ch)
	l.dropped.Describe(ch)
}

// Collect implements prometheus.Collector.
func (l *Log) Collect(ch chan<- prometheus.Metric) {
	l.written.Collect(ch)
	l.dropped.Collect(ch)
}

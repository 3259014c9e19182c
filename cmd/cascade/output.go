package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/engine/report"
)

// logger returns the process's logger, as --log and --log-format ask for.
func (s *settings) logger() (*slog.Logger, error) {
	if s.log != nil {
		return s.log, nil
	}
	var err error
	if s.limiter, err = loglimit.Open(s.stderr, s.logLevel, s.logFormat); err != nil {
		return nil, &usageError{command: "cascade", err: err}
	}
	s.log = slog.New(s.limiter)
	return s.log, nil
}

// announce writes a line to standard error, whatever --log says.
func (s *settings) announce(level slog.Level, format string, args ...any) {
	if s.logFormat == "json" {
		slog.New(slog.NewJSONHandler(s.stderr, nil)).Log(context.Background(), level, fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintf(s.stderr, format+"\n", args...)
}

// closeLog reports the events that were too frequent to be logged.
func (s *settings) closeLog() {
	if s.limiter != nil {
		s.limiter.Close()
	}
}

// print writes v as indented JSON.
func (s *settings) print(v any) error {
	e := json.NewEncoder(s.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printTable writes v as JSON with --json, and the table without it.
func (s *settings) printTable(v any, t report.Table) error {
	if s.json {
		return s.print(v)
	}
	return t.Text(s.stdout)
}

// printLine writes v as JSON with --json, and a line of text without it.
func (s *settings) printLine(v any, format string, args ...any) error {
	if s.json {
		return s.print(v)
	}
	_, err := fmt.Fprintf(s.stdout, format+"\n", args...)
	return err
}

// jsonString returns text as a JSON string.
func jsonString(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic("internal error: encode a string: " + err.Error())
	}
	return string(out)
}

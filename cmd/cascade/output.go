package main

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/engine/report"
)

// logger returns the logger that --log asks for. It limits the lines of each event.
func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, &usageError{command: "cascade", err: fmt.Errorf("--log %q: must be debug, info, warn or error", s.logLevel)}
	}
	return slog.New(loglimit.Wrap(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: level}))), nil
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

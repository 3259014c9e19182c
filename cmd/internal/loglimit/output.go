package loglimit

import (
	"fmt"
	"io"
	"log/slog"
)

// Open returns a Handler that writes to out, as a program's --log and --log-format ask for: a level
// (debug, info, warn or error), and text or json. The error names the flag.
func Open(out io.Writer, level, format string) (*Handler, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log %q: must be debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return New(slog.NewTextHandler(out, options)), nil
	case "json":
		return New(slog.NewJSONHandler(out, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: must be text or json", format)
}

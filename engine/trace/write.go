package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// Write writes the trace as text that Read reads back with the same requests
// (arrivals rounded to microseconds): CSV when no request names its prefix,
// Mooncake JSONL otherwise.
func Write(w io.Writer, requests []Request) error {
	return write(w, requests, slices.ContainsFunc(requests, func(r Request) bool { return len(r.Prefix) > 0 }))
}

// WriteJSONL is Write, with Mooncake JSONL in any case.
func WriteJSONL(w io.Writer, requests []Request) error { return write(w, requests, true) }

func write(w io.Writer, requests []Request, jsonl bool) error {
	out := bufio.NewWriter(w)
	if !jsonl {
		out.WriteString("arrival_ms,input_tokens,output_tokens\n")
	}
	// A bufio.Writer keeps its first error, so Flush reports them all.
	var line []byte
	for _, r := range requests {
		if jsonl {
			line = append(line[:0], `{"timestamp": `...)
			line = appendArrival(line, r.At)
			line = fmt.Appendf(line, `, "input_length": %d, "output_length": %d, "hash_ids": [`, r.Input, r.Output)
			for i, id := range r.Prefix {
				if i > 0 {
					line = append(line, ", "...)
				}
				line = strconv.AppendUint(line, id, 10)
			}
			line = append(line, "]}\n"...)
		} else {
			line = appendArrival(line[:0], r.At)
			line = fmt.Appendf(line, ",%d,%d\n", r.Input, r.Output)
		}
		out.Write(line)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	return nil
}

// appendArrival writes milliseconds with the microseconds that matter.
func appendArrival(line []byte, at time.Duration) []byte {
	if at < 0 {
		return append(line, "-1"...)
	}
	return strconv.AppendFloat(line, float64(at.Round(time.Microsecond).Microseconds())/1000, 'f', -1, 64)
}

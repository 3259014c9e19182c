package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// sloSample is how many requests of a simulation the SLO is computed from.
const sloSample = 4096

// parseSLO parses TTFT,TPOT such as 200ms,20ms; empty is none.
func parseSLO(text string) (slo replay.SLO, err error) {
	if text == "" {
		return slo, nil
	}
	first, between, _ := strings.Cut(text, ",")
	ttft, err1 := time.ParseDuration(first)
	tpot, err2 := time.ParseDuration(between)
	if err1 != nil || err2 != nil || ttft <= 0 || tpot <= 0 {
		return slo, fmt.Errorf("--slo %q: write the time to the first token and between tokens of a request that is alone, such as 200ms,20ms", text)
	}
	return replay.SLO{TTFT: ttft.Seconds(), TPOT: tpot.Seconds()}, nil
}

// slo returns the SLO of the first requests of a source that is read twice. Lines at fault are left to the
// second reading.
func (r *traceFlags) slo(p cost.Profile) (replay.SLO, error) {
	source, closeSource, err := r.stream(true, &invalidLines{})
	if err != nil {
		return replay.SLO{}, err
	}
	defer closeSource()
	var sample []trace.Request
	for len(sample) < sloSample {
		q, err := source.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return replay.SLO{}, err
		}
		sample = append(sample, q)
	}
	return replay.Alone(p, sample), nil
}

// arrivalTime returns the wall time from the start of a replay to its last arrival.
func arrivalTime(requests []trace.Request, speed float64) time.Duration {
	return time.Duration(float64(requests[len(requests)-1].At) / speed)
}

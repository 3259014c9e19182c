package main

import (
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// problems returns a function for what a daemon lacks or will lack soon, which "cascade status"
// shows: descriptors, memory and certificates.
func problems(room *headroom.Monitor, ends certs.Expiries) func() []loadreport.Problem {
	return func() []loadreport.Problem { return append(room.Problems(), ends.Problems(time.Now())...) }
}

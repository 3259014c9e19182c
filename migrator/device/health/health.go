// Package health judges whether a GPU is to be trusted with the KV of requests, by what
// its driver tells: critical errors (Xid) as they come, and readings now and then.
//
// It asks nobody, and decides from what it is told alone. What a GPU survives is noted
// and no more: a program's own fault, memory that waits to be repaired, low clocks.
package health

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// Tracker has what was told of one GPU. The zero value has heard nothing. It is for one
// goroutine at a time.
type Tracker struct {
	xid         uint64 // the latest one that is the GPU's fault; 0 for none
	read        bool
	baselineECC uint64 // uncorrected memory errors at the first reading
	reading     topology.Health
}

// xidTexts are the meanings of Xids, as NVIDIA's list has them.
var xidTexts = map[uint64]string{
	13: "a fault in a program", 31: "a program's access to memory that is not its own", 43: "a program's work was stopped", 45: "a program's work was taken down",
	48: "an uncorrected memory error", 61: "its controller has stopped", 62: "its controller has halted", 63: "memory rows are to be replaced",
	64: "memory rows could not be replaced", 68: "a fault of the video processor", 74: "an NVLink error", 79: "it has fallen off the bus",
	92: "many corrected memory errors", 94: "a contained memory error", 95: "an uncontained memory error", 109: "a program's work could not be switched",
	119: "its system processor does not answer", 120: "its system processor has failed", 140: "an unrecovered memory error",
}

// applicationXids are the Xids that say nothing against the GPU: of programs' own faults, as
// NVIDIA's device plugin for Kubernetes has them, and of a repair that is planned.
var applicationXids = map[uint64]bool{13: true, 31: true, 43: true, 45: true, 63: true, 68: true, 109: true}

// XidText is an Xid with its meaning.
func XidText(xid uint64) string {
	if text := xidTexts[xid]; text != "" {
		return fmt.Sprintf("Xid %d: %s", xid, text)
	}
	return fmt.Sprintf("Xid %d", xid)
}

// RecordXid takes a critical error, and reports whether it is held against the GPU. It is
// from then on: what ends it, a reset, ends this process's use of the GPU too.
func (j *Tracker) RecordXid(xid uint64) bool {
	if applicationXids[xid] {
		return false
	}
	j.xid = xid
	return true
}

// RecordReading takes a reading. Memory errors of before the first one are not held against
// the GPU: the rows that had them are out of use.
func (j *Tracker) RecordReading(h topology.Health) {
	if h.Lost == "" && (!j.read || h.ECC < j.baselineECC) {
		j.read, j.baselineECC = true, h.ECC
	}
	if h.Lost != "" { // nothing else was told
		h.ECC = j.baselineECC
	}
	j.reading = h
}

// Problem is why no KV should be put on the GPU; "" when it may.
func (j *Tracker) Problem() string {
	switch r := j.reading; {
	case r.Lost != "":
		return r.Lost
	case j.xid != 0:
		return XidText(j.xid)
	case r.RemapFailed:
		return "its memory could not be repaired: replace it"
	case r.ECC > j.baselineECC:
		return fmt.Sprintf("%d uncorrected memory errors since it was first looked at", r.ECC-j.baselineECC)
	}
	return ""
}

// Warning is what is wrong with a GPU that works; "" for nothing.
func (j *Tracker) Warning() string {
	var notes []string
	if j.reading.Remap {
		notes = append(notes, "its memory has rows to be replaced: reset it when it is idle")
	}
	if len(j.reading.Throttled) > 0 {
		notes = append(notes, "slowed: "+strings.Join(j.reading.Throttled, ", "))
	}
	return strings.Join(notes, "; ")
}

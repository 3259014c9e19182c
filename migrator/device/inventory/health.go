package inventory

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// HealthTracker judges whether the KV of requests may be kept on a GPU, from the reports of its driver: critical errors
// (Xids) as they occur, and readings at intervals. Problem says why the GPU should not be used. What a GPU survives is only
// a Warning: a fault of a program, memory that waits for repair, low clocks. The zero value has no reports. It is for one
// goroutine at a time.
type HealthTracker struct {
	xid         uint64 // the latest one that the GPU caused; 0 for none
	read        bool
	baselineECC uint64 // uncorrected memory errors at the first reading
	reading     topology.Health
}

// xidTexts are the meanings of Xids, from NVIDIA's list.
var xidTexts = map[uint64]string{
	13: "a fault in a program", 31: "a program's access to memory that is not its own", 43: "a program's work was stopped", 45: "a program's work was taken down",
	48: "an uncorrected memory error", 61: "its controller has stopped", 62: "its controller has halted", 63: "memory rows are to be replaced",
	64: "memory rows could not be replaced", 68: "a fault of the video processor", 74: "an NVLink error", 79: "it has fallen off the bus",
	92: "many corrected memory errors", 94: "a contained memory error", 95: "an uncontained memory error", 109: "a program's work could not be switched",
	119: "its system processor does not answer", 120: "its system processor has failed", 140: "an unrecovered memory error",
}

// applicationXids are the Xids that do not count against the GPU: faults of programs, as
// NVIDIA's device plugin for Kubernetes lists them, and a planned repair.
var applicationXids = map[uint64]bool{13: true, 31: true, 43: true, 45: true, 63: true, 68: true, 109: true}

// XidText describes an Xid.
func XidText(xid uint64) string {
	if text := xidTexts[xid]; text != "" {
		return fmt.Sprintf("Xid %d: %s", xid, text)
	}
	return fmt.Sprintf("Xid %d", xid)
}

// RecordXid records a critical error, and reports whether it counts against the GPU. It
// counts for good: only a reset ends it, which ends this process's use of the GPU too.
func (j *HealthTracker) RecordXid(xid uint64) bool {
	if applicationXids[xid] {
		return false
	}
	j.xid = xid
	return true
}

// RecordReading records a reading. Memory errors before the first one do not count: the
// rows that had them are out of use.
func (j *HealthTracker) RecordReading(h topology.Health) {
	if h.Lost == "" && (!j.read || h.ECC < j.baselineECC) {
		j.read, j.baselineECC = true, h.ECC
	}
	if h.Lost != "" { // a lost GPU reports nothing else
		h.ECC = j.baselineECC
	}
	j.reading = h
}

// Problem returns why no KV should be kept on the GPU, "" if it may be used.
func (j *HealthTracker) Problem() string {
	switch r := j.reading; {
	case r.Lost != "":
		return r.Lost
	case j.xid != 0:
		return XidText(j.xid)
	case r.RemapFailed:
		return "its memory could not be repaired: replace the GPU"
	case r.ECC > j.baselineECC:
		return fmt.Sprintf("%d uncorrected memory errors since the first reading", r.ECC-j.baselineECC)
	}
	return ""
}

// Warning returns what is wrong with a GPU that works, "" for nothing.
func (j *HealthTracker) Warning() string {
	var notes []string
	if j.reading.Remap {
		notes = append(notes, "its memory has rows to be remapped: reset the GPU when it is idle")
	}
	if len(j.reading.Throttled) > 0 {
		notes = append(notes, "throttled: "+strings.Join(j.reading.Throttled, ", "))
	}
	return strings.Join(notes, "; ")
}

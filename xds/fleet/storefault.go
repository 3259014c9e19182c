package fleet

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// StoreOperation is what a control plane does with its stores.
type StoreOperation string

// The operations.
const (
	StoreRead     StoreOperation = "read"
	StoreWrite    StoreOperation = "write"
	StoreCounters StoreOperation = "counters"
	StoreGarbage  StoreOperation = "garbage"
)

// StoreFault is an operation that failed when it was last tried.
type StoreFault struct {
	Operation StoreOperation
	Err       error
	Since     time.Time // of the first failure in a row
}

// consequences says what a failing operation means for a fleet.
var consequences = map[StoreOperation]string{
	StoreRead:     "stored plan cannot be read, the last one stays in force",
	StoreWrite:    "plan not stored, the last one stays in force, and orders fail",
	StoreCounters: "counters not saved, a restart would begin to count anew",
	StoreGarbage:  "the store grows, and its limits will be reached",
}

// Consequence says what the fault means for the fleet.
func (f StoreFault) Consequence() string { return consequences[f.Operation] }

// IsMinor reports whether plans and orders are stored all the same.
func (f StoreFault) IsMinor() bool {
	return f.Operation == StoreCounters || f.Operation == StoreGarbage
}

// StoreFaults lists the operations that fail, sorted by name.
func (f *Fleet) StoreFaults() []StoreFault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []StoreFault
	for _, fault := range f.storeFaults {
		out = append(out, fault)
	}
	slices.SortFunc(out, func(a, b StoreFault) int { return cmp.Compare(a.Operation, b.Operation) })
	return out
}

// NoteStore records the result of an operation, and logs failures and the recovery.
func (f *Fleet) NoteStore(op StoreOperation, err error) {
	now := time.Now()
	f.mu.Lock()
	fault, failed := f.storeFaults[op]
	if err != nil {
		if !failed {
			fault.Since = now
		}
		fault.Operation, fault.Err = op, err
		f.storeFaults[op] = fault
	} else {
		delete(f.storeFaults, op)
	}
	f.mu.Unlock()
	switch {
	case err != nil:
		f.log.Error(consequences[op], "error", err)
	case err == nil && failed:
		f.log.Warn("plan store works again", "operation", op, "failed_for", now.Sub(fault.Since).Round(time.Millisecond))
	}
}

// errSkipped is the fault of counters that are not saved because the save before hangs.
var errSkipped = errors.New("the last save has not returned: check the disk or the file server")

package slothost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/strictjson"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	historyFormat = "cascade-policy-slots/1"
	maxHistory    = 1 << 20 // bytes
	maxRan        = 2       // the active and the previous module
	maxRolledBack = 64      // older ones are below the mark and were not the last to run
)

// history is what a slot keeps across restarts: which statements it may still run. It
// does no I/O.
//
// A statement is admitted when it is newer than all before it, or when it is one that
// the host ran last or was to run last. So an old statement with good signatures is
// refused, and a restart or a rollback to the previous module needs no new statement.
type history struct {
	Mark       sign.Mark              `json:"mark"`                  // the newest admitted
	Wanted     []sign.Mark            `json:"wanted,omitempty"`      // by the last spec
	Ran        []sign.Mark            `json:"ran,omitempty"`         // as the active policy, latest first
	RolledBack []lifecycle.Generation `json:"rolled_back,omitempty"` // ascending
}

func (h history) clone() history {
	h.Wanted, h.Ran, h.RolledBack = slices.Clone(h.Wanted), slices.Clone(h.Ran), slices.Clone(h.RolledBack)
	return h
}

// knows reports whether a statement may run even if it is not the newest.
func (h history) knows(m sign.Mark) bool {
	return slices.Contains(h.Wanted, m) || slices.Contains(h.Ran, m)
}

// admit returns why a statement may not run here.
func (h history) admit(s sign.Statement) error {
	if slices.Contains(h.RolledBack, s.Generation) {
		return fmt.Errorf("%s: generation %d was rolled back: sign a new statement, with a higher generation", s.Name, s.Generation)
	}
	if h.knows(sign.MarkOf(s)) {
		return nil
	}
	_, err := h.Mark.Admit(s)
	return err
}

// recordWanted records the statements of a spec, which were all admitted.
func (h *history) recordWanted(all []sign.Statement) {
	h.Wanted = nil
	for _, s := range all {
		m := sign.MarkOf(s)
		h.Wanted = append(h.Wanted, m)
		if m.Generation > h.Mark.Generation {
			h.Mark = m
		}
	}
}

// recordRan records the statement that is active now.
func (h *history) recordRan(m sign.Mark) {
	h.Ran = slices.DeleteFunc(h.Ran, func(o sign.Mark) bool { return o == m })
	h.Ran = slices.Insert(h.Ran, 0, m)
	h.Ran = h.Ran[:min(len(h.Ran), maxRan)]
}

// recordRollback records a generation that never runs again.
func (h *history) recordRollback(g lifecycle.Generation) {
	same := func(m sign.Mark) bool { return m.Generation == g }
	h.Wanted, h.Ran = slices.DeleteFunc(h.Wanted, same), slices.DeleteFunc(h.Ran, same)
	if i, found := slices.BinarySearch(h.RolledBack, g); !found {
		h.RolledBack = slices.Insert(h.RolledBack, i, g)
		h.RolledBack = h.RolledBack[max(0, len(h.RolledBack)-maxRolledBack):]
	}
}

// follow adds the modules that ran, and those that were rolled back, by another history.
func (h *history) follow(o history) {
	for _, m := range slices.Backward(o.Ran) {
		h.recordRan(m)
	}
	for _, g := range o.RolledBack {
		h.recordRollback(g)
	}
}

// historyFile is the file of all slots.
type historyFile struct {
	Format string             `json:"format"`
	Slots  map[string]history `json:"slots"`
}

// readHistory reads a file. A missing file, and the name "", are empty.
func readHistory(name string) (map[string]history, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: mode %s: must be a regular file", name, info.Mode())
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("%s: mode %s: others may write to it: chmod 600", name, info.Mode())
	}
	b, err := atomicfile.Read(name, maxHistory)
	if err != nil {
		return nil, err
	}
	slots, err := decodeHistory(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return slots, nil
}

// decodeHistory decodes the content of a file.
func decodeHistory(b []byte) (map[string]history, error) {
	var file historyFile
	if err := strictjson.Unmarshal(b, &file); err != nil {
		return nil, err
	}
	if file.Format != historyFormat {
		return nil, fmt.Errorf("format %.80q: must be %s", file.Format, historyFormat)
	}
	for name, h := range file.Slots {
		if !lifecycle.Kind(name).Known() {
			return nil, fmt.Errorf("slot %.80q: unknown kind", name)
		}
		if !slices.IsSorted(h.RolledBack) || len(h.Ran) > maxRan || len(h.RolledBack) > maxRolledBack {
			return nil, fmt.Errorf("slot %s: too many or unsorted entries", name)
		}
		for _, m := range slices.Concat(h.Wanted, h.Ran) {
			if m.Generation > h.Mark.Generation {
				return nil, fmt.Errorf("slot %s: generation %d is above the mark, %d", name, m.Generation, h.Mark.Generation)
			}
		}
	}
	return file.Slots, nil
}

func encodeHistory(slots map[string]history) ([]byte, error) {
	if slots == nil {
		slots = map[string]history{}
	}
	b, err := json.MarshalIndent(historyFile{historyFormat, slots}, "", "  ")
	return append(b, '\n'), err
}

// writeHistory replaces a file durably. It makes a missing folder again, because the
// caller has all of the content.
func writeHistory(name string, b []byte) error {
	err := atomicfile.Write(name, b, 0o600)
	if errors.Is(err, fs.ErrNotExist) && os.Mkdir(filepath.Dir(name), 0o700) == nil {
		err = atomicfile.Write(name, b, 0o600)
	}
	return err
}

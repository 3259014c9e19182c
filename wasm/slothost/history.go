package slothost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

const (
	historyFormat = "cascade-policy-slots/1"
	mostHistory   = 1 << 20 // bytes
	mostRan       = 2       // what is active, and what was before
	mostTakenBack = 64      // older ones are below the mark and were not the last to run
)

// history is what a slot remembers across restarts: which statements it may still
// run. It decides, and touches no file.
//
// A statement is admitted when it is newer than all before, or when it is one
// that the host was running or told to run last: so an old statement with good
// signatures gets nowhere, and a restart or a roll-back to what ran before needs
// no new one.
type history struct {
	Mark       sign.Mark   `json:"mark"`                  // the newest admitted
	Wanted     []sign.Mark `json:"wanted,omitempty"`      // by the last want
	Ran        []sign.Mark `json:"ran,omitempty"`         // as the active policy, latest first
	RolledBack []uint64    `json:"rolled_back,omitempty"` // ascending
}

func (h history) clone() history {
	h.Wanted, h.Ran, h.RolledBack = slices.Clone(h.Wanted), slices.Clone(h.Ran), slices.Clone(h.RolledBack)
	return h
}

// knows reports whether a statement is among those that may run though they are
// not the newest.
func (h history) knows(m sign.Mark) bool {
	return slices.Contains(h.Wanted, m) || slices.Contains(h.Ran, m)
}

// admit refuses a statement that may not run here. It changes nothing.
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

// want takes note of what the fleet wants, all of which was admitted.
func (h *history) want(all []sign.Statement) {
	h.Wanted = nil
	for _, s := range all {
		m := sign.MarkOf(s)
		h.Wanted = append(h.Wanted, m)
		if m.Generation > h.Mark.Generation {
			h.Mark = m
		}
	}
}

// ran takes note of the generation that is active now.
func (h *history) ran(m sign.Mark) {
	h.Ran = slices.DeleteFunc(h.Ran, func(o sign.Mark) bool { return o == m })
	h.Ran = slices.Insert(h.Ran, 0, m)
	h.Ran = h.Ran[:min(len(h.Ran), mostRan)]
}

// rollBack takes note of a generation that never runs again.
func (h *history) rollBack(g uint64) {
	gone := func(m sign.Mark) bool { return m.Generation == g }
	h.Wanted, h.Ran = slices.DeleteFunc(h.Wanted, gone), slices.DeleteFunc(h.Ran, gone)
	if i, found := slices.BinarySearch(h.RolledBack, g); !found {
		h.RolledBack = slices.Insert(h.RolledBack, i, g)
		h.RolledBack = h.RolledBack[max(0, len(h.RolledBack)-mostTakenBack):]
	}
}

// resume is what a slot may be offered though it is below its floor.
func (h history) resume() []promotion.Generation {
	var all []promotion.Generation
	for _, m := range slices.Concat(h.Wanted, h.Ran) {
		all = append(all, promotion.Generation(m.Generation))
	}
	return all
}

// historyFile is the file of all slots.
type historyFile struct {
	Format string             `json:"format"`
	Slots  map[string]history `json:"slots"`
}

// readHistory reads a file; none, and no name, are an empty one.
func readHistory(name string) (map[string]history, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s: mode %s: only its owner may write to it, who runs this host: chmod 600", name, info.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, mostHistory+1))
	if err != nil {
		return nil, err
	}
	slots, err := decodeHistory(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return slots, nil
}

// decodeHistory reads a file's bytes.
func decodeHistory(b []byte) (map[string]history, error) {
	if len(b) > mostHistory {
		return nil, fmt.Errorf("longer than %d bytes", mostHistory)
	}
	var file historyFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more behind the object")
	}
	if file.Format != historyFormat {
		return nil, fmt.Errorf("format %.80q: %s is what this version reads", file.Format, historyFormat)
	}
	for name, h := range file.Slots {
		if _, ok := kindOf(name); !ok {
			return nil, fmt.Errorf("slot %.80q: there is no such kind", name)
		}
		if !slices.IsSorted(h.RolledBack) || len(h.Ran) > mostRan || len(h.RolledBack) > mostTakenBack {
			return nil, fmt.Errorf("slot %s: not as this version writes it", name)
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
	b, err := json.MarshalIndent(historyFile{historyFormat, slots}, "", "  ")
	return append(b, '\n'), err
}

// writeHistory replaces a file: after a crash, the old one is there or the new
// one. Where somebody has removed its folder, that is made again: all that was in the
// file is known.
func writeHistory(name string, b []byte) (err error) {
	dir, temp := filepath.Dir(name), "."+filepath.Base(name)+"-*"
	f, err := os.CreateTemp(dir, temp) // 0600
	if errors.Is(err, fs.ErrNotExist) && os.Mkdir(dir, 0o700) == nil {
		f, err = os.CreateTemp(dir, temp)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

func kindOf(name string) (abi.Kind, bool) {
	for k := abi.Configure + 1; k < abi.NumKinds; k++ {
		if k.String() == name {
			return k, true
		}
	}
	return 0, false
}

package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/internal/atomicfile"
)

// MaxNote is the longest note, in bytes.
const MaxNote = 256 << 10

// NoteLifetime is how long a note is kept after it was last written.
const NoteLifetime = time.Hour

// Notes are small messages that the control planes of a store leave for each other. Each
// control plane has one note, about itself, whose loss does no harm. Notes are not part of
// the object, so that writing them does not conflict with its writers.
//
//   - Put replaces the note of a name; an empty text removes it. Readers see either the
//     whole old note or the whole new one. It refuses a text longer than MaxNote.
//   - All returns every note, in no particular order, without those that were put more than
//     an hour ago. Notes that can be read are returned together with the errors of the
//     others.
//
// Both may be called by any goroutine at any time.
type Notes interface {
	Put(name string, text []byte) error
	All() ([][]byte, error)
}

// NoteFolder is Notes in a directory, a file for each. Control planes that share a file
// system may share it.
type NoteFolder struct{ path string }

var _ Notes = (*NoteFolder)(nil)

// noteSuffix ends the names of a NoteFolder's files; other files are left alone.
const noteSuffix = ".note"

// NewNoteFolder returns the notes in a directory, which it creates if it does not
// exist; its parent must exist.
func NewNoteFolder(path string) (*NoteFolder, error) {
	path, err := makeFolder(path)
	if err != nil {
		return nil, fmt.Errorf("notes: %w", err)
	}
	return &NoteFolder{path}, nil
}

// name returns the file of a note. The file name contains a hash where the note's name
// is too long.
func (f *NoteFolder) name(of string) string {
	base := identity.Escape(of)
	if len(base) > 200 {
		sum := sha256.Sum256([]byte(of))
		base = hex.EncodeToString(sum[:])
	}
	return filepath.Join(f.path, base+noteSuffix)
}

// Put implements Notes. Notes are not synced: they may be lost in a power failure.
func (f *NoteFolder) Put(name string, text []byte) error {
	if name == "" || len(text) > MaxNote {
		return fmt.Errorf("note of %.60q: %d bytes; must have a name and at most %d bytes", name, len(text), MaxNote)
	}
	if len(text) == 0 {
		if err := os.Remove(f.name(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("notes: %w", err)
		}
		return nil
	}
	if err := atomicfile.WriteUnsynced(f.name(name), text, 0o600); err != nil {
		return fmt.Errorf("notes: %w", err)
	}
	return nil
}

// All implements Notes. It removes notes that were put more than an hour ago, and leaves
// out a file that disappears while it is read.
func (f *NoteFolder) All() ([][]byte, error) {
	entries, err := os.ReadDir(f.path)
	if err == nil {
		err = atomicfile.RemoveStale(f.path, isNote)
	}
	errs := []error{err}
	old := time.Now().Add(-NoteLifetime)
	var out [][]byte
	for _, e := range entries {
		if !isNote(e.Name()) {
			continue
		}
		path := filepath.Join(f.path, e.Name())
		info, err := e.Info()
		var text []byte
		switch {
		case err != nil:
		case info.ModTime().Before(old):
			err = os.Remove(path)
		default:
			if text, err = atomicfile.Read(path, MaxNote); err == nil {
				out = append(out, text)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("notes: %w", err)
	}
	return out, nil
}

func isNote(name string) bool { return strings.HasSuffix(name, noteSuffix) }

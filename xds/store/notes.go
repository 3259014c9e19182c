package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// MaxNote is the longest note, in bytes, and maxNotes how many are read.
const (
	MaxNote  = 512 << 10
	maxNotes = 64
)

// NoteLifetime is how long a note is kept after it was last written.
const NoteLifetime = time.Hour

// noteAges is when a text of a note was first read here, by the blob's name.
type noteAges struct {
	mu   sync.Mutex
	seen map[string]seenNote
}

type seenNote struct {
	sum   string
	since time.Time
}

// blobName returns a name of any characters as that of a blob, which people recognise.
func blobName(name string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, name)
	return "n" + readable[:min(len(readable), 40)] + "-" + sumOf([]byte(name))[:20]
}

// PutNote replaces the note of a control plane about itself; an empty text removes it. Notes are no
// part of the object, so that writing them does not conflict with its writers; their loss does no
// harm. Readers see either the whole old note or the whole new one.
func (s *Store) PutNote(ctx context.Context, name string, text []byte) error {
	if name == "" || len(text) > MaxNote {
		return fmt.Errorf("note of %.60q: %d bytes; must have a name and at most %d bytes", name, len(text), MaxNote)
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	if len(text) == 0 {
		return s.backend.RemoveBlob(ctx, Notes, blobName(name))
	}
	return s.backend.ReplaceBlob(ctx, Notes, blobName(name), text)
}

// AllNotes returns every note, in no particular order, without those that this process has seen
// unchanged for an hour, which it removes. Notes that can be read are returned together with the
// errors of the others.
func (s *Store) AllNotes(ctx context.Context, now time.Time) (texts [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	names, err := s.backend.ListBlobs(ctx, Notes)
	if err != nil {
		return nil, err
	}
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	seen := make(map[string]seenNote)
	var errs []error
	for _, name := range names[:min(len(names), maxNotes)] {
		text, err := s.backend.ReadBlob(ctx, Notes, name)
		if errors.Is(err, ErrNoBlob) {
			continue // it was removed meanwhile
		}
		last := s.notes.seen[name]
		if sum := sumOf(text); err == nil && last.sum != sum {
			last = seenNote{sum, now}
		}
		seen[name] = last
		switch {
		case err != nil:
			errs = append(errs, err)
		case now.Sub(last.since) >= NoteLifetime:
			errs = append(errs, s.backend.RemoveBlob(ctx, Notes, name))
		case len(text) <= MaxNote:
			texts = append(texts, text)
		}
	}
	s.notes.seen = seen
	return texts, errors.Join(errs...)
}

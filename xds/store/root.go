package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/internal/strictjson"
)

// format is the number of the format of a root and of what it names.
const format = 2

// ErrFormat says that another version of the program wrote the stored object.
var ErrFormat = errors.New("the plan was written by another version of this program")

// ErrCorrupt says that what is stored is damaged: Repair replaces it.
var ErrCorrupt = errors.New("the stored plan is damaged")

// rootDocument is the content of a root.
type rootDocument struct {
	Format int `json:"format"`
	// Write makes every write different from all others, so that one whose answer was lost is
	// recognised.
	Write string `json:"write"`
	Lease Lease  `json:"lease,omitzero"`
	Plan  part   `json:"plan"`
	State part   `json:"state"`
}

// part is an object of a root: in it, or where its pieces are.
type part struct {
	Inline json.RawMessage `json:"inline,omitempty"`
	Stored *pointer        `json:"stored,omitempty"`
}

// pointer names the pieces of a part.
type pointer struct {
	ID     string `json:"id"` // hexadecimal digits that no other part has
	SHA256 string `json:"sha256"`
	Size   int    `json:"size"` // of all pieces, in bytes
	Pieces int    `json:"pieces"`
}

func (p part) equal(o part) bool {
	if p.Stored != nil && o.Stored != nil {
		return *p.Stored == *o.Stored
	}
	return p.Stored == nil && o.Stored == nil && string(p.Inline) == string(o.Inline)
}

// decodeRoot returns the content of a root, which an operator may have damaged. The error is
// ErrFormat (wrapped) if another version wrote it.
func decodeRoot(data []byte) (rootDocument, error) {
	// The format first: another one may have other fields.
	var head struct {
		Format int `json:"format"`
	}
	var d rootDocument
	if json.Unmarshal(data, &head) == nil && head.Format != 0 && head.Format != format {
		return d, fmt.Errorf("%w: format %d, and this program reads %d: start a version that reads it, "+
			"or remove it to begin with a first plan", ErrFormat, head.Format, format)
	}
	err := strictjson.Unmarshal(data, &d)
	if err == nil && d.Format != format {
		err = fmt.Errorf("format %d: must be %d", d.Format, format)
	}
	if err == nil {
		err = errors.Join(d.Plan.validate("plan"), d.State.validate("state"))
	}
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return d, nil
}

// validate bounds what a pointer makes a reader do.
func (p part) validate(name string) error {
	if p.Stored == nil {
		return nil
	}
	sum, err := hex.DecodeString(p.Stored.SHA256)
	if _, e := hex.DecodeString(p.Stored.ID); err != nil || e != nil || len(sum) != sha256.Size || len(p.Stored.ID) != idDigits {
		return fmt.Errorf("%s: stored: id or sha256 is none", name)
	}
	if p.Stored.Size < 1 || p.Stored.Size > MaxSize || p.Stored.Pieces < 1 || p.Stored.Pieces > p.Stored.Size {
		return fmt.Errorf("%s: stored: %d bytes in %d pieces: at most %d bytes are allowed",
			name, p.Stored.Size, p.Stored.Pieces, MaxSize)
	}
	return nil
}

// names returns the names of the blobs that a root names.
func (d rootDocument) names() map[string]bool {
	all := make(map[string]bool)
	for _, p := range [...]part{d.Plan, d.State} {
		if p.Stored != nil {
			for n := range p.Stored.Pieces {
				all[pieceName(p.Stored.ID, n, p.Stored.Pieces)] = true
			}
		}
	}
	return all
}

// idDigits is the length of an ID.
const idDigits = 16

// newID returns an ID that no blob has. So a blob that is removed because nothing names it
// cannot be one that another writer is about to name.
func newID() string {
	var id [idDigits / 2]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// putPart stores a part, which is in the root if it has at most inline bytes there.
func (s *Store) putPart(ctx context.Context, body []byte, inline int) (part, error) {
	var indented bytes.Buffer // as swapRoot writes it: up to three times as long
	if len(body) <= inline && json.Indent(&indented, body, "    ", "  ") == nil && indented.Len() <= inline {
		return part{Inline: body}, nil
	}
	p := pointer{ID: newID(), SHA256: sumOf(body), Size: len(body)}
	var err error
	p.Pieces, err = s.putPieces(ctx, Parts, p.ID, body)
	return part{Stored: &p}, err
}

// getPart returns the object of a part.
func (s *Store) getPart(ctx context.Context, p part) (Object, error) {
	body := []byte(p.Inline)
	if p.Stored != nil {
		var err error
		body, err = s.getPieces(ctx, Parts, p.Stored.ID, p.Stored.Pieces, p.Stored.Size)
		switch {
		case errors.Is(err, ErrNoBlob), errors.Is(err, errTooLong):
			return Object{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		case err != nil:
			return Object{}, err
		case sumOf(body) != p.Stored.SHA256:
			return Object{}, fmt.Errorf("%w: blob %s/%s: another hash than the root names", ErrCorrupt, Parts, p.Stored.ID)
		}
	}
	o, err := decode(body)
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return o, nil
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// pieceName returns the name of piece n of the blob id; names sort as pieces do.
func pieceName(id string, n, of int) string { return fmt.Sprintf("%s.%04d.%04d", id, n, of) }

// putPieces stores what may be too large for one blob, and returns the number of pieces.
func (s *Store) putPieces(ctx context.Context, folder, id string, body []byte) (int, error) {
	size := s.backend.Limits().Blob
	pieces := max(1, (len(body)+size-1)/size)
	for n := range pieces {
		piece := body[n*size : min(len(body), (n+1)*size)]
		err := s.backend.CreateBlob(ctx, folder, pieceName(id, n, pieces), piece)
		if err != nil && !errors.Is(err, ErrExists) { // by an attempt whose answer was lost: the ID is new
			return 0, err
		}
	}
	return pieces, nil
}

var errTooLong = errors.New("it has more bytes than are allowed")

// getPieces is the inverse of putPieces; more than limit bytes are an error.
func (s *Store) getPieces(ctx context.Context, folder, id string, pieces, limit int) (body []byte, err error) {
	for n := range pieces {
		piece, err := s.backend.ReadBlob(ctx, folder, pieceName(id, n, pieces))
		if err != nil {
			return nil, err
		}
		if body = append(body, piece...); len(body) > limit {
			return nil, fmt.Errorf("blob %s/%s: %w: %d", folder, id, errTooLong, limit)
		}
	}
	return body, nil
}

// blobSet is the pieces that are stored of what putPieces stores.
type blobSet struct {
	id    string
	of    int
	names []string
}

func (b blobSet) isComplete() bool { return len(b.names) == b.of }

// listSets lists what putPieces has stored in a folder, sorted by ID. Other blobs are left out.
func (s *Store) listSets(ctx context.Context, folder string) ([]blobSet, error) {
	names, err := s.backend.ListBlobs(ctx, folder)
	if err != nil {
		return nil, err
	}
	sets := make(map[string]blobSet)
	for _, name := range names {
		rest, of, ok := cutLast(name)
		pieces, err := strconv.Atoi(of)
		id, n, ok2 := cutLast(rest)
		if _, e := strconv.Atoi(n); ok && ok2 && err == nil && e == nil && pieces > 0 {
			sets[id+"/"+of] = blobSet{id, pieces, append(sets[id+"/"+of].names, name)}
		}
	}
	out := slices.Collect(maps.Values(sets))
	slices.SortFunc(out, func(a, b blobSet) int { return strings.Compare(a.id, b.id) })
	return out, nil
}

func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

// removeSets removes all blobs of sets, also after one could not be removed.
func (s *Store) removeSets(ctx context.Context, folder string, sets ...blobSet) error {
	var errs []error
	for _, set := range sets {
		for _, name := range set.names {
			if err := s.backend.RemoveBlob(ctx, folder, name); err != nil {
				errs = append(errs, err)
			}
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

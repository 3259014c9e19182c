package resources

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// A Resource is one encoded xDS resource. It is immutable: caches, streams
// and sets share its bytes.
type Resource struct {
	Type    string // type URL
	Name    string
	Version string // content hash of Body, stable across processes and restarts
	Body    []byte // deterministic encoding
	// Unlisted resources are sent only to clients that subscribe to them by
	// name, never as part of a wildcard: an Envoy has no use for the listener
	// of a gRPC client.
	Unlisted bool
}

// Encode encodes a message as a Resource. Equal messages give equal versions.
func Encode(typeURL, name string, m proto.Message) (*Resource, error) {
	body, err := deterministic.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return &Resource{Type: typeURL, Name: name, Version: Version(body), Body: body}, nil
}

// Decode reads the resource's message into m.
func (r *Resource) Decode(m proto.Message) error {
	if err := proto.Unmarshal(r.Body, m); err != nil {
		return fmt.Errorf("decode %s %s: %w", ShortType(r.Type), r.Name, err)
	}
	return nil
}

// versionBytes is how much of the SHA-256 a version keeps. 64 bits make an
// accidental collision between two versions of one resource impossible in
// practice, and a version is never a proof of authenticity.
const versionBytes = 8

// Version is the content hash that names a version of an encoded resource.
func Version(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:versionBytes])
}

// deterministic is the only way that this package marshals.
var deterministic = proto.MarshalOptions{Deterministic: true}

// Wrap packs a message into an Any, deterministically. The messages are those of Cascade's own
// configuration, so an error is a programming error.
func Wrap(m proto.Message) *anypb.Any {
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, deterministic); err != nil {
		panic("internal error: " + err.Error())
	}
	return a
}

// A Set is an immutable collection of resources, by type and name. The zero
// value is empty. Sets share their resources, so deriving one from another is
// cheap. It is safe for concurrent use.
type Set struct {
	types map[string]map[string]*Resource
}

// NewSet collects resources. Two of one type and name are an error.
func NewSet(rs ...*Resource) (Set, error) {
	s := Set{types: make(map[string]map[string]*Resource)}
	for _, r := range rs {
		byName := s.types[r.Type]
		if byName == nil {
			byName = make(map[string]*Resource)
			s.types[r.Type] = byName
		}
		if byName[r.Name] != nil {
			return Set{}, fmt.Errorf("%s %q occurs twice", ShortType(r.Type), r.Name)
		}
		byName[r.Name] = r
	}
	return s, nil
}

// Types returns the type URLs of the set, sorted.
func (s Set) Types() []string { return slices.Sorted(maps.Keys(s.types)) }

// Get returns one resource, or nil.
func (s Set) Get(typeURL, name string) *Resource { return s.types[typeURL][name] }

// Len counts the resources of a type.
func (s Set) Len(typeURL string) int { return len(s.types[typeURL]) }

// All returns the resources of a type, sorted by name.
func (s Set) All(typeURL string) []*Resource {
	all := slices.Collect(maps.Values(s.types[typeURL]))
	slices.SortFunc(all, func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// WithTypes returns the set with all resources of the given types taken from another
// one. The phases of a rollout are made this way: routes of the old plan with the
// endpoints of both.
func (s Set) WithTypes(from Set, typeURLs ...string) Set {
	out := Set{types: maps.Clone(s.types)}
	if out.types == nil {
		out.types = make(map[string]map[string]*Resource)
	}
	for _, t := range typeURLs {
		if m, ok := from.types[t]; ok {
			out.types[t] = m
		} else {
			delete(out.types, t)
		}
	}
	return out
}

// Equal reports whether the two sets hold the same versions of the given types, or of
// all types if none is given.
func (s Set) Equal(o Set, typeURLs ...string) bool {
	if len(typeURLs) == 0 {
		typeURLs = append(s.Types(), o.Types()...)
	}
	for _, t := range typeURLs {
		if len(ChangedNames(s, o, t)) > 0 {
			return false
		}
	}
	return true
}

// ChangedNames lists the names of a type whose version differs between two sets,
// added and removed ones included, sorted.
func ChangedNames(a, b Set, typeURL string) []string {
	var names []string
	am, bm := a.types[typeURL], b.types[typeURL]
	for name, r := range am {
		if o := bm[name]; o != r && (o == nil || o.Version != r.Version) {
			names = append(names, name)
		}
	}
	for name := range bm {
		if am[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// withName returns an encoded resource under another name. The name is field 1
// of every type that is served, so it is what the deterministic encoding
// begins with.
func withName(body []byte, name string) []byte {
	rest := withoutName(body)
	out := make([]byte, 0, len(name)+len(rest)+nameOverhead)
	out = protowire.AppendTag(out, nameField, protowire.BytesType)
	out = protowire.AppendString(out, name)
	return append(out, rest...)
}

// isCopyNamed reports whether body is withName(of, name).
func isCopyNamed(body, of []byte, name string) bool {
	rest, ok := bytes.CutSuffix(body, withoutName(of))
	return ok && bytes.Equal(rest, withName(nil, name))
}

const (
	nameField    = 1
	nameOverhead = 6 // tag and length, at most
)

// withoutName returns what follows the name of an encoded resource, or all of it if it
// does not start with one.
func withoutName(body []byte) []byte {
	num, typ, n := protowire.ConsumeTag(body)
	if n < 0 || num != nameField || typ != protowire.BytesType {
		return body
	}
	_, m := protowire.ConsumeBytes(body[n:])
	if m < 0 {
		return body
	}
	return body[n+m:]
}

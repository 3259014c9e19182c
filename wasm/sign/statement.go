package sign

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Format names the file's layout and begins the canonical text, so that no
// signature of another protocol, made with the same key, passes for one of this.
// PreviousFormat is the one before, whose files are read, and can be written.
const (
	Format         = "cascade-policy-signature/2"
	PreviousFormat = "cascade-policy-signature/1"
)

const (
	maxName    = 64
	maxVersion = 64
)

// SumOf returns the digest of what a statement may bind, the zero one for nothing.
func SumOf(bound []byte) lifecycle.Digest {
	if len(bound) == 0 {
		return lifecycle.Digest{}
	}
	return sha256.Sum256(bound)
}

// Grant lets a module decide a kind, within limits. A limit of 0 is the host's
// default; a host never gives more than its own configuration does.
type Grant struct {
	Kind   abi.Kind
	Fuel   uint64 // ticks per call
	Micros uint64 // wall time per call, in microseconds
	Pages  uint64 // memory, in pages of 64 KiB
}

// Statement is what is signed about one module.
//
// Invariants, checked by Validate:
//  1. ABI is 1–64 printable characters without spaces,
//  2. Name is 1–64 of a–z, 0–9, "-", "_", "." and "/", the first a letter or digit,
//  3. Version is MAJOR.MINOR.PATCH, with "-" and a pre-release if need be,
//  4. there is a grant, and they are in order of their kinds, none twice; they are
//     kinds that decide (configure does not),
//  5. NotAfter is not negative,
//  6. Generation is positive,
//  7. First has neither Configuration nor Golden.
type Statement struct {
	Digest  lifecycle.Digest
	ABI     string // abi.Name
	Name    string // the policy's name, for people
	Version string // semantic version, for people
	Grants  []Grant
	// NotAfter is the last second, of Unix time, at which the module may begin to
	// decide; 0 for no end. See the package comment.
	NotAfter int64
	// Generation orders all statements of a ring, whatever their names: see
	// Mark. The second of signing is a good one.
	Generation lifecycle.Generation
	// Configuration is the digest of what the module is to be configured with: it
	// decides with nothing else. The zero one stands for no configuration.
	Configuration lifecycle.Digest
	// Golden is the digest of File.Golden, the zero one where there is none.
	Golden lifecycle.Digest
	// Format1 is set in statements of FormatFirst, which say nothing of configuration
	// and expectations: they let a module be configured with anything.
	Format1 bool
}

// CheckConfiguration says why a module must not be configured with something, nil when it
// may.
func (s Statement) CheckConfiguration(with []byte) error {
	switch got := SumOf(with); {
	case s.Format1 || got == s.Configuration:
		return nil
	case s.Configuration == lifecycle.Digest{}:
		return fmt.Errorf("%s is signed without a configuration, and is given one of %d bytes: sign it with --configuration", s.Name, len(with))
	case len(with) == 0:
		return fmt.Errorf("%s is signed with configuration %s, and is given none", s.Name, s.Configuration)
	default:
		return fmt.Errorf("%s is signed with configuration %s, and is given %s: sign it with the one that it is to have", s.Name, s.Configuration, got)
	}
}

// Grant returns the grant for a kind, and whether there is one.
func (s Statement) Grant(k abi.Kind) (Grant, bool) {
	for _, g := range s.Grants {
		if g.Kind == k {
			return g, true
		}
	}
	return Grant{}, false
}

// Expired reports whether NotAfter has passed.
func (s Statement) Expired(now time.Time) bool {
	return s.NotAfter != 0 && now.Unix() > s.NotAfter
}

// Validate reports the first broken invariant, or nil.
func (s Statement) Validate() error {
	switch {
	case !plain(s.ABI):
		return fmt.Errorf("statement: abi %.80q: write %s", s.ABI, abi.Name)
	case !named(s.Name):
		return fmt.Errorf("statement: name %.80q: use 1 to %d of a-z, 0-9 and -_./, the first a letter or digit", s.Name, maxName)
	case !semantic(s.Version):
		return fmt.Errorf("statement: version %.80q: write it as 1.2.3 or 1.2.3-rc.1", s.Version)
	case len(s.Grants) == 0:
		return fmt.Errorf("statement: no kind: name those that the module decides")
	case s.NotAfter < 0:
		return fmt.Errorf("statement: not_after %d is before 1970: 0 means no end", s.NotAfter)
	case s.Generation == 0:
		return fmt.Errorf("statement: generation 0: they count from 1")
	case s.Format1 && (s.Configuration != lifecycle.Digest{} || s.Golden != lifecycle.Digest{}):
		return fmt.Errorf("statement: %s binds neither a configuration nor expectations", PreviousFormat)
	}
	last := abi.Configure
	for _, g := range s.Grants {
		if g.Kind <= last || g.Kind >= abi.NumKinds {
			return fmt.Errorf("statement: kind %s: list each kind that decides once, in the order of their numbers", g.Kind)
		}
		last = g.Kind
	}
	return nil
}

// Canonical is the text that is signed, a line per field in a fixed order. It is
// defined for valid statements: those cannot hold a line break or a space where
// one would make it ambiguous.
func (s Statement) Canonical() []byte {
	b := make([]byte, 0, 512)
	b = append(b, s.format()...)
	b = append(b, "\nsha256 "...)
	b = append(b, s.Digest.String()...)
	b = append(b, "\nabi "...)
	b = append(b, s.ABI...)
	b = append(b, "\nname "...)
	b = append(b, s.Name...)
	b = append(b, "\nversion "...)
	b = append(b, s.Version...)
	for _, g := range s.Grants {
		b = append(b, "\nkind "...)
		b = append(b, g.Kind.String()...)
		b = strconv.AppendUint(append(b, " fuel "...), g.Fuel, 10)
		b = strconv.AppendUint(append(b, " micros "...), g.Micros, 10)
		b = strconv.AppendUint(append(b, " pages "...), g.Pages, 10)
	}
	b = strconv.AppendInt(append(b, "\nnot-after "...), s.NotAfter, 10)
	b = strconv.AppendUint(append(b, "\ngeneration "...), uint64(s.Generation), 10)
	if !s.Format1 {
		b = append(append(b, "\nconfiguration "...), orNone(s.Configuration)...)
		b = append(append(b, "\ngolden "...), orNone(s.Golden)...)
	}
	return append(b, '\n')
}

func (s Statement) format() string {
	if s.Format1 {
		return PreviousFormat
	}
	return Format
}

// orNone returns the digest as canonical texts have it.
func orNone(d lifecycle.Digest) string {
	if d == (lifecycle.Digest{}) {
		return "none"
	}
	return d.String()
}

// plain reports whether a word is short, printable ASCII and without spaces.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxName
}

func named(s string) bool {
	if len(s) == 0 || len(s) > maxName || strings.IndexByte("-_./", s[0]) >= 0 {
		return false
	}
	return only(s, "abcdefghijklmnopqrstuvwxyz0123456789-_./")
}

func semantic(s string) bool {
	if len(s) > maxVersion {
		return false
	}
	core, pre, more := strings.Cut(s, "-")
	if more && (pre == "" || !only(pre, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")) {
		return false
	}
	parts := strings.Split(core, ".")
	for _, p := range parts {
		if p == "" || !only(p, "0123456789") || len(p) > 1 && p[0] == '0' {
			return false
		}
	}
	return len(parts) == 3
}

func only(s, set string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(set, r) })
}

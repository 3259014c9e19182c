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

// Format names the file format. The canonical text begins with it, so that a signature
// that the same key made for another protocol is not valid here. Files of earlier
// formats, which bind less, are refused.
const Format = "cascade-policy-signature/3"

// DefaultFleet is the name of a fleet that has no other.
const DefaultFleet = "default"

const (
	maxName    = 64
	maxVersion = 64
	maxFleet   = 255 // a trust domain fits
)

// SumOf returns the digest of a configuration or of expectations, the zero digest for
// empty ones.
func SumOf(bound []byte) lifecycle.Digest {
	if len(bound) == 0 {
		return lifecycle.Digest{}
	}
	return sha256.Sum256(bound)
}

// Grant permits a module to decide a kind, within limits. A limit of 0 means the host's
// default. A grant cannot raise the limits of the host's configuration.
type Grant struct {
	Kind   abi.Kind
	Fuel   uint64 // ticks per call
	Micros uint64 // wall time per call, in microseconds
	Pages  uint64 // memory, in pages of 64 KiB
}

// Statement is the signed content of a file: what is granted to one module.
//
// Invariants, checked by Validate:
//  1. ABI is 1–64 printable characters without spaces,
//  2. Name is 1–64 of a–z, 0–9, "-", "_", "." and "/", the first a letter or digit,
//  3. Version is MAJOR.MINOR.PATCH, optionally with "-" and a pre-release,
//  4. Grants has at least one grant, in the order of kinds, without duplicates, and only
//     for kinds that decide (configure does not),
//  5. NotAfter is not negative,
//  6. Generation is positive,
//  7. Fleet is 1–255 printable characters without spaces.
type Statement struct {
	Digest  lifecycle.Digest
	Fleet   string // the only fleet that may admit the module
	ABI     string // abi.Name
	Name    string // the policy's name, for display
	Version string // semantic version, for display
	Grants  []Grant
	// NotAfter is the last second, of Unix time, at which the module may be admitted
	// or promoted; 0 means no expiry. See the package comment.
	NotAfter int64
	// Generation orders all statements of a ring, whatever their names; see Mark. The
	// Unix time of signing is a good choice.
	Generation lifecycle.Generation
	// Configuration is the digest of the only configuration with which the module may
	// run. The zero digest means no configuration.
	Configuration lifecycle.Digest
	// Golden is the digest of File.Golden, zero if there is none.
	Golden lifecycle.Digest
}

// CheckConfiguration returns an error if the statement does not permit a configuration.
func (s Statement) CheckConfiguration(with []byte) error {
	switch got := SumOf(with); {
	case got == s.Configuration:
		return nil
	case s.Configuration == lifecycle.Digest{}:
		return fmt.Errorf("%s is signed without a configuration, and is given one of %d bytes: sign it with --configuration", s.Name, len(with))
	case len(with) == 0:
		return fmt.Errorf("%s is signed with configuration %s, and is given none: give the one that it was signed with (--configuration)", s.Name, s.Configuration)
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
	case CheckFleet(s.Fleet) != nil:
		return fmt.Errorf("statement: %w", CheckFleet(s.Fleet))
	case !plain(s.ABI, maxName):
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

// Canonical returns the text that is signed, a line per field in a fixed order. It is
// defined for valid statements, whose fields have no line breaks or spaces that would
// make it ambiguous.
func (s Statement) Canonical() []byte {
	b := make([]byte, 0, 512)
	b = append(b, Format...)
	b = append(append(b, "\nfleet "...), s.Fleet...)
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
	b = append(append(b, "\nconfiguration "...), orNone(s.Configuration)...)
	b = append(append(b, "\ngolden "...), orNone(s.Golden)...)
	return append(b, '\n')
}

// orNone formats a digest for the canonical text: "none" for the zero digest.
func orNone(d lifecycle.Digest) string {
	if d == (lifecycle.Digest{}) {
		return "none"
	}
	return d.String()
}

// plain reports whether s is short, printable ASCII without spaces.
func plain(s string, most int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= most
}

// CheckFleet returns an error for text that cannot be the name of a fleet.
func CheckFleet(name string) error {
	if !plain(name, maxFleet) {
		return fmt.Errorf("fleet %.80q: use 1 to %d printable characters without spaces", name, maxFleet)
	}
	return nil
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

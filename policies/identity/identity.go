// Package identity is the names that Cascade's components have in their
// certificates: one URI in the manner of SPIFFE,
//
//	spiffe://<trust domain>/proxy/<node id>
//	spiffe://<trust domain>/migrator/<replica id>
//	spiffe://<trust domain>/control/<name>
//	spiffe://<trust domain>/operator/<name>
//
// It is not a certificate authority and verifies no chain: it says whose
// certificate one is, for those that have verified it, so that what a peer
// claims to be can be compared with what it can prove.
//
// Invariants:
//
//  1. An identity has one spelling: Parse(s) succeeds only if the result's
//     String is s.
//  2. A name that Parse returns can be logged and compared as it is: it is UTF-8
//     without control characters, and neither empty, "." nor "..".
//
// Names of letters, digits, dots, dashes and underscores make identities as
// SPIFFE-ID 1.0 has them, which any SPIFFE issuer can issue. All other bytes are
// written as %XX in upper case, which SPIFFE itself does not know: node and
// replica ids are free text.
package identity

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of an identity in bytes, by SPIFFE-ID 1.0, section 2.3.
const (
	MaxLength      = 2048
	MaxTrustDomain = 255
)

const scheme = "spiffe://"

// Role is the kind of component that an identity is for.
type Role string

// The roles.
const (
	Proxy    Role = "proxy"    // Envoy, the embedded proxy, a gRPC client; its name is its node id
	Migrator Role = "migrator" // its name is its replica's id
	Control  Role = "control"  // a control plane
	Operator Role = "operator" // a person or a program that gives orders
)

func (r Role) valid() bool {
	switch r {
	case Proxy, Migrator, Control, Operator:
		return true
	}
	return false
}

// ID is one identity. IDs may be compared with ==. The zero value is none.
type ID struct {
	TrustDomain string
	Role        Role
	Name        string // as the component calls itself, without escapes
}

// New makes an identity, or says what is wrong with its parts.
func New(trustDomain string, role Role, name string) (ID, error) {
	id := ID{trustDomain, role, name}
	if err := CheckTrustDomain(trustDomain); err != nil {
		return ID{}, err
	}
	if !role.valid() {
		return ID{}, errors.New("role " + quote(string(role)) + " is none of proxy, migrator, control and operator")
	}
	if err := checkName(name); err != nil {
		return ID{}, err
	}
	if n := len(id.String()); n > MaxLength {
		return ID{}, errors.New("an identity of " + strconv.Itoa(n) + " bytes; at most " + strconv.Itoa(MaxLength) + " are allowed")
	}
	return id, nil
}

// Parse reads an identity. Errors say what is wrong with it.
func Parse(s string) (ID, error) {
	id, err := parse(s)
	if err != nil {
		return ID{}, errors.New("identity " + quote(s) + ": " + err.Error())
	}
	return id, nil
}

func parse(s string) (ID, error) {
	if len(s) > MaxLength {
		return ID{}, errors.New(strconv.Itoa(len(s)) + " bytes; at most " + strconv.Itoa(MaxLength) + " are allowed")
	}
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ID{}, errors.New("it does not begin with " + scheme)
	}
	domain, path, _ := strings.Cut(rest, "/")
	role, escaped, _ := strings.Cut(path, "/")
	name, err := unescape(escaped)
	if err != nil {
		return ID{}, err
	}
	return New(domain, Role(role), name)
}

// String is the identity's only spelling.
func (id ID) String() string {
	return scheme + id.TrustDomain + "/" + string(id.Role) + "/" + Escape(id.Name)
}

// NodeID is the id under which the component asks for xDS, "" for one that does
// not.
func (id ID) NodeID() string {
	switch id.Role {
	case Proxy:
		return id.Name
	case Migrator:
		return MigratorNodeID(id.Name)
	}
	return ""
}

// MigratorNodeID is the node id of a replica's migrator.
func MigratorNodeID(replica string) string { return string(Migrator) + "/" + replica }

// CheckTrustDomain says what is wrong with a trust domain.
func CheckTrustDomain(s string) error {
	if s == "" || len(s) > MaxTrustDomain {
		return errors.New("trust domain " + quote(s) + " has " + strconv.Itoa(len(s)) + " bytes; give 1 to " + strconv.Itoa(MaxTrustDomain) + ", for instance example.org")
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '-', c == '_':
		default:
			return errors.New("trust domain " + quote(s) + ": only lower-case letters, digits, dots, dashes and underscores are allowed")
		}
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return errors.New("the name " + quote(name) + " is not allowed")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("the name " + quote(name) + " is not UTF-8, or has control characters")
	}
	return nil
}

// Escape writes a name as an identity has it: a path segment, and a safe file
// name for every name that New takes.
func Escape(name string) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(name))
	for i := range len(name) {
		c := name[i]
		if isUnescaped(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(out)
}

// unescape reads what Escape wrote, and nothing else.
func unescape(s string) (string, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isUnescaped(c) {
			out = append(out, c)
			continue
		}
		if c != '%' || i+2 >= len(s) {
			return "", errors.New("byte " + quote(s[i:i+1]) + " is not allowed in the name: write it as %XX")
		}
		high, low := hexDigit(s[i+1]), hexDigit(s[i+2])
		if high > 15 || low > 15 || isUnescaped(high<<4|low) {
			return "", errors.New(quote(s[i:i+3]) + " is no escape: %XX in upper case is one, of a byte that needs it")
		}
		out = append(out, high<<4|low)
		i += 2
	}
	return string(out), nil
}

// isUnescaped says that a byte of a name stands for itself.
func isUnescaped(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}

// hexDigit is the value of an upper-case hexadecimal digit, 255 for anything else.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// maxQuoted bounds what an error repeats of a stranger's text.
const maxQuoted = 120

func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.QuoteToASCII(s[:maxQuoted]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

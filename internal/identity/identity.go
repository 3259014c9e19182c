// Package identity defines the names of Cascade's components in their certificates: one
// SPIFFE-style URI,
//
//	spiffe://<trust domain>/proxy/<node id>
//	spiffe://<trust domain>/migrator/<replica id>
//	spiffe://<trust domain>/control/<name>
//	spiffe://<trust domain>/operator/<name>
//
// The package is not a certificate authority and verifies no chain. After a chain has
// been verified, it names the owner of the certificate, so that a peer's claimed
// identity can be compared with the proven one.
//
// Invariants:
//
//  1. An identity has exactly one text form: Parse(s) succeeds only if the result's
//     String is s.
//  2. A name that Parse returns can be logged and compared without escaping: it is
//     UTF-8 without control characters, and neither empty, "." nor "..".
//
// Names of letters, digits, dots, dashes and underscores form identities of SPIFFE-ID
// 1.0, which any SPIFFE issuer can issue. All other bytes are written as %XX in upper
// case, which SPIFFE does not allow: node and replica ids are free text.
package identity

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of an identity in bytes (SPIFFE-ID 1.0, section 2.3).
const (
	MaxLength      = 2048
	MaxTrustDomain = 255
)

const scheme = "spiffe://"

// Role is the kind of component that an identity belongs to.
type Role string

// The roles.
const (
	Proxy    Role = "proxy"    // Envoy, the embedded proxy, a gRPC client; its name is its node id
	Migrator Role = "migrator" // its name is its replica's id
	Control  Role = "control"  // a control plane
	Operator Role = "operator" // a person or program that sends admin commands
)

func (r Role) valid() bool {
	return r == Proxy || r == Migrator || r == Control || r == Operator
}

// ID is one identity. IDs may be compared with ==. The zero value is none.
type ID struct {
	TrustDomain string
	Role        Role
	Name        string // as the component spells it, without escapes
}

// New returns the identity of these parts, or an error that names the invalid one.
func New(trustDomain string, role Role, name string) (ID, error) {
	id := ID{trustDomain, role, name}
	if err := CheckTrustDomain(trustDomain); err != nil {
		return ID{}, err
	}
	if !role.valid() {
		return ID{}, errors.New("role " + quote(string(role)) + ": must be proxy, migrator, control or operator")
	}
	if err := checkName(name); err != nil {
		return ID{}, err
	}
	if n := len(id.String()); n > MaxLength {
		return ID{}, errors.New("an identity of " + strconv.Itoa(n) + " bytes; at most " + strconv.Itoa(MaxLength) + " are allowed")
	}
	return id, nil
}

// Parse parses an identity.
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
		return ID{}, errors.New("must begin with " + scheme)
	}
	domain, path, _ := strings.Cut(rest, "/")
	role, escaped, _ := strings.Cut(path, "/")
	name, err := unescape(escaped)
	if err != nil {
		return ID{}, err
	}
	return New(domain, Role(role), name)
}

// String returns the identity's only text form.
func (id ID) String() string {
	return scheme + id.TrustDomain + "/" + string(id.Role) + "/" + Escape(id.Name)
}

// NodeID returns the node id under which the component subscribes to xDS, "" if it does
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

// MigratorNodeID returns the node id of a replica's migrator.
func MigratorNodeID(replica string) string { return string(Migrator) + "/" + replica }

// CheckTrustDomain returns an error if a trust domain is invalid.
func CheckTrustDomain(s string) error {
	if s == "" || len(s) > MaxTrustDomain {
		return errors.New("trust domain " + quote(s) + " has " + strconv.Itoa(len(s)) + " bytes; give 1 to " + strconv.Itoa(MaxTrustDomain) + ", for instance example.org")
	}
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return errors.New("trust domain " + quote(s) + ": only lower-case letters, digits, dots, dashes and underscores are allowed")
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

// Escape returns a name as it is written in an identity: a path segment, and a safe
// file name for every name that New accepts.
func Escape(name string) string {
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(name))
	for _, c := range []byte(name) {
		if isUnescaped(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(out)
}

// unescape reverses Escape and rejects all other text.
func unescape(s string) (string, error) {
	name, err := url.PathUnescape(s)
	if err != nil || Escape(name) != s {
		return "", errors.New("name " + quote(s) + ": letters, digits, dots, dashes and underscores stand for themselves, and every other byte is %XX in upper case")
	}
	return name, nil
}

// isUnescaped reports whether a byte of a name is written without an escape.
func isUnescaped(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}

// maxQuoted bounds how much of an untrusted text an error quotes.
const maxQuoted = 120

func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.QuoteToASCII(s[:maxQuoted]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

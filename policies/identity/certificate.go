package identity

import (
	"crypto/x509"
	"errors"
	"strconv"
)

// FromCertificate returns the identity of a leaf certificate, whose chain the
// caller has verified. It must carry exactly one URI, which is one, and must not
// be an authority's.
func FromCertificate(c *x509.Certificate) (ID, error) {
	switch {
	case c == nil:
		return ID{}, errors.New("no certificate")
	case c.IsCA:
		return ID{}, errors.New("the certificate is an authority's; components have certificates of their own")
	case len(c.URIs) != 1:
		return ID{}, errors.New("the certificate has " + strconv.Itoa(len(c.URIs)) + " URI names; give it exactly one, like spiffe://example.org/proxy/edge")
	}
	return Parse(c.URIs[0].String())
}

// Matcher says who a peer must be.
type Matcher struct {
	TrustDomain string // required
	Role        Role   // "" takes any
	Name        string // "" takes any
}

// String is the pattern of the identities that are wanted, with * for any.
func (w Matcher) String() string {
	if w.Role == "" {
		return scheme + w.TrustDomain + "/*"
	}
	if w.Name == "" {
		return scheme + w.TrustDomain + "/" + string(w.Role) + "/*"
	}
	return ID(w).String()
}

// Check says why an identity is not the one that is wanted; nil when it is.
func (w Matcher) Check(id ID) error {
	if id.TrustDomain == "" || id.TrustDomain != w.TrustDomain || w.Role != "" && id.Role != w.Role || w.Name != "" && id.Name != w.Name {
		return errors.New("the certificate is " + id.String() + ", and " + w.String() + " is wanted")
	}
	return nil
}

// CheckCertificate returns the identity of a verified leaf certificate, and an error
// unless it is the one that is wanted.
func (w Matcher) CheckCertificate(c *x509.Certificate) (ID, error) {
	id, err := FromCertificate(c)
	if err != nil {
		return ID{}, errors.New(err.Error() + "; " + w.String() + " is wanted")
	}
	return id, w.Check(id)
}

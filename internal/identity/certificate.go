package identity

import (
	"crypto/x509"
	"errors"
	"strconv"
)

// FromCertificate returns the identity of a leaf certificate whose chain the caller has
// verified. The certificate must have exactly one URI, which must be an identity, and
// must not belong to a certificate authority.
func FromCertificate(c *x509.Certificate) (ID, error) {
	switch {
	case c == nil:
		return ID{}, errors.New("no certificate")
	case c.IsCA:
		return ID{}, errors.New("the certificate belongs to a certificate authority; give the component a certificate of its own")
	case len(c.URIs) != 1:
		return ID{}, errors.New("the certificate has " + strconv.Itoa(len(c.URIs)) + " URI names; give it exactly one, like spiffe://example.org/proxy/edge")
	}
	return Parse(c.URIs[0].String())
}

// Describe names a certificate that may not be verified, and its issuer, for messages to
// operators.
func Describe(c *x509.Certificate) string {
	name := c.Subject.String()
	if len(c.URIs) > 0 {
		name = c.URIs[0].String()
	} else if name == "" && len(c.DNSNames) > 0 {
		name = c.DNSNames[0]
	}
	const most = 256 // bytes: whoever made it may have chosen any name
	return cut(name, most) + ", issued by " + strconv.Quote(cut(c.Issuer.String(), most))
}

func cut(s string, most int) string { return s[:min(len(s), most)] }

// Matcher describes the identities that a peer may have.
type Matcher struct {
	TrustDomain string // required
	Role        Role   // "" matches any
	Name        string // "" matches any
}

// String returns the pattern of the matching identities, with * for any.
func (w Matcher) String() string {
	if w.Role == "" {
		return scheme + w.TrustDomain + "/*"
	}
	if w.Name == "" {
		return scheme + w.TrustDomain + "/" + string(w.Role) + "/*"
	}
	return ID(w).String()
}

// Check returns nil if the identity matches, otherwise an error that names both.
func (w Matcher) Check(id ID) error {
	if id.TrustDomain == "" || id.TrustDomain != w.TrustDomain || w.Role != "" && id.Role != w.Role || w.Name != "" && id.Name != w.Name {
		return errors.New("the certificate is " + id.String() + ", and " + w.String() + " is wanted")
	}
	return nil
}

// CheckCertificate returns the identity of a verified leaf certificate, and an error
// if it does not match.
func (w Matcher) CheckCertificate(c *x509.Certificate) (ID, error) {
	id, err := FromCertificate(c)
	if err != nil {
		return ID{}, errors.New(err.Error() + "; " + w.String() + " is wanted")
	}
	return id, w.Check(id)
}

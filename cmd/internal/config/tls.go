package config

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// The placeholders of a path for the component that reads it.
const (
	rolePart = "{role}"
	namePart = "{name}"
)

// ForComponent returns t with the files of one component.
func (t TLS) ForComponent(role identity.Role, name string) TLS {
	if t.TrustDomain != "" {
		fill := strings.NewReplacer(rolePart, string(role), namePart, identity.Escape(name))
		t.Cert, t.Key = fill.Replace(t.Cert), fill.Replace(t.Key)
	}
	return t
}

// ServesRequests reports whether migrators serve proxies over mutual TLS.
func (t TLS) ServesRequests() bool { return t.Cert != "" && !t.Allows(PlaintextRequests) }

// Allows reports whether Plaintext names what may travel unencrypted.
func (t TLS) Allows(what string) bool { return slices.Contains(t.Plaintext, what) }

func (t TLS) sameFiles(other TLS) bool { return t.Cert == other.Cert && t.Key == other.Key }

// PerComponent reports whether each component has files of its own.
func (t TLS) PerComponent() bool { return !t.ForComponent("", "").sameFiles(t) }

// PerName reports whether components of one role have different files.
func (t TLS) PerName() bool {
	return !t.ForComponent(identity.Control, "a").sameFiles(t.ForComponent(identity.Control, "b"))
}

// ExpectedIdentity returns the identity that the certificate of a component must
// have; the zero value without a trust domain.
func (t TLS) ExpectedIdentity(role identity.Role, name string) identity.Matcher {
	if t.TrustDomain == "" {
		return identity.Matcher{}
	}
	return identity.Matcher{TrustDomain: t.TrustDomain, Role: role, Name: name}
}

func (t TLS) validate(c *checker) {
	if !filepath.IsAbs(t.EnvoyDir) {
		c.fail("tls.envoy_dir", "%q: must be an absolute path: Envoys on every host read it", t.EnvoyDir)
	}
	if (t.Cert == "") != (t.Key == "") || (t.Cert == "") != (t.CA == "") {
		c.fail("tls", "cert, key and ca belong together: set all three or none")
	}
	if t.TrustDomain == "" {
		for path, file := range map[string]string{"tls.cert": t.Cert, "tls.key": t.Key} {
			if strings.Contains(file, rolePart) || strings.Contains(file, namePart) {
				c.fail(path, "%s and %s need identities; set tls.trust_domain", rolePart, namePart)
			}
		}
		return
	}
	if err := identity.CheckTrustDomain(t.TrustDomain); err != nil {
		c.fail("tls.trust_domain", "%s", err)
	}
	if t.Cert == "" {
		c.fail("tls.trust_domain", "identities need certificates; set tls.cert, tls.key and tls.ca")
	}
	if (TLS{Cert: t.Cert, TrustDomain: t.TrustDomain}).PerComponent() != (TLS{Cert: t.Key, TrustDomain: t.TrustDomain}).PerComponent() {
		c.fail("tls.key", "use %s and %s in both cert and key, or in neither", rolePart, namePart)
	}
	if strings.Contains(t.CA, rolePart) || strings.Contains(t.CA, namePart) {
		c.fail("tls.ca", "%q: all components have the same authorities; use no placeholders", t.CA)
	}
}

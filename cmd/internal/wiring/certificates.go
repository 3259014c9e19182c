package wiring

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
)

// CertificateInfo is what CheckCertificates has found about a component's certificate.
type CertificateInfo struct {
	Component string `json:"component"` // such as migrator/r0; "" for a file that serves one machine
	File      string `json:"file"`
	Identity  string `json:"identity,omitempty"` // "" without a file
	Error     string `json:"error,omitempty"`
}

// component is a daemon in the fleet file's tls section. An empty name accepts the name in the certificate.
type component struct {
	role identity.Role
	name string
}

// controlComponent returns a control plane as a component of the tls section.
// If the paths do not depend on the name, it accepts any control plane's
// certificate.
func controlComponent(fleet Fleet, name string) component {
	if !fleet.Fleet.TLS.PerName() {
		name = ""
	}
	return component{identity.Control, name}
}

// CheckCertificates reads the certificates of a fleet file, and lists those with a trust domain. If
// components have files of their own, a missing file is not an error; a certificate of another
// component always is.
func CheckCertificates(fleet Fleet) (list []CertificateInfo, wrong []*config.FieldError) {
	if fleet.Fleet.TLS.Cert == "" {
		return nil, nil
	}
	var parts []component
	for _, name := range fleet.ControlCertificates() {
		if part := controlComponent(fleet, name); !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	for _, r := range fleet.Fleet.Replicas {
		parts = append(parts, component{identity.Migrator, r.ID})
	}
	own := fleet.Fleet.TLS.PerComponent()
	if !own {
		parts = []component{{}}
	}
	for _, part := range parts {
		files := fleet.TLS(part.role, part.name)
		h := CertificateInfo{File: files.Cert}
		want := files.ExpectedIdentity(part.role, part.name)
		if own {
			h.Component = strings.TrimSuffix(string(part.role)+"/"+part.name, "/")
		}
		keys, bad := certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA, Self: want})
		switch {
		case bad == nil && want == (identity.Matcher{}):
			continue
		case bad == nil:
			h.Identity = keys.Identity().String()
			bad = checkServed(fleet.Fleet, keys.Identity())
		case own && errors.Is(bad, fs.ErrNotExist):
			list = append(list, h)
			continue
		}
		if bad != nil {
			h.Error = bad.Error()
			wrong = append(wrong, &config.FieldError{Path: tlsField(files, bad), Msg: strings.TrimPrefix(h.Error, "tls: ")})
		}
		if want != (identity.Matcher{}) {
			list = append(list, h)
		}
	}
	return list, wrong
}

// tlsField returns the field with the file name that caused an error.
func tlsField(files config.TLS, bad error) string {
	var path *fs.PathError
	switch {
	case errors.As(bad, &path) && path.Path == files.Key && files.Key != files.Cert:
		return "tls.key"
	case strings.Contains(bad.Error(), files.CA) && files.CA != files.Cert:
		return "tls.ca"
	}
	return "tls.cert"
}

// checkServed returns an error if the identity is of a replica that the fleet does not have. It
// does not check proxies, because their node ids are not in the file.
func checkServed(fleet config.Fleet, id identity.ID) error {
	if id.Role != identity.Migrator {
		return nil
	}
	for _, r := range fleet.Replicas {
		if r.ID == id.Name {
			return nil
		}
	}
	return errors.New("tls: the certificate is " + id.String() + ", and the fleet file has no such replica")
}

// describeRole returns the command that a certificate is for.
func describeRole(id identity.ID) string {
	switch id.Role {
	case identity.Control:
		return "fits cascade control --name " + id.Name
	case identity.Migrator:
		return "fits cascade migrator --replica " + id.Name
	case identity.Proxy:
		return "fits cascade proxy and cascade envoy-bootstrap --node-id " + id.Name
	}
	return "fits no daemon"
}

// String returns the result as one line.
func (h CertificateInfo) String() string {
	if h.Identity == "" {
		return h.Component + ": " + h.File + " is not on this host"
	}
	id, err := identity.Parse(h.Identity)
	if err != nil {
		return h.File + ": " + err.Error()
	}
	return h.File + " is " + h.Identity + ": " + describeRole(id)
}

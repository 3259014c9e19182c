package wiring

import (
	"fmt"
	"path/filepath"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// Attach returns the configuration with which an Envoy of another owner, with the
// given node id, reaches this fleet. Without control addresses it uses all of the
// fleet's control planes. With TLS, Envoy presents the certificate that the fleet
// file names for the node id; without a trust domain, the certificates of the
// control planes must carry the addresses that it dials.
func (f *Fleet) Attach(nodeID string, control []string) (attach.Config, error) {
	if len(control) == 0 {
		control = f.ControlPlanes()
	}
	c := attach.Config{Control: control, Cluster: f.Fleet.Control.XDSCluster, BodyLimit: f.Fleet.Proxy.BodyLimit.Bytes(),
		SeveralModels: len(f.Fleet.Models) > 1}
	if f.Fleet.TLS.Cert == "" {
		return c, nil
	}
	files := f.TLS(identity.Proxy, nodeID)
	hosts, err := splitHosts(control)
	if err != nil {
		return c, fmt.Errorf("attach: control: %w", err)
	}
	c.TransportSocket, err = upstreamTLS(files, hosts, func(tls *tlsv3.CommonTlsContext, own *tlsv3.TlsCertificate, peers *tlsv3.CertificateValidationContext) error {
		tls.TlsCertificates = []*tlsv3.TlsCertificate{own}
		tls.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: peers}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("attach: tls: %w", err)
	}
	return c, nil
}

// AttachFiles returns the PEM files, by absolute paths, of a gRPC client's mutual
// TLS with this fleet's control plane; none for plain text.
func (f *Fleet) AttachFiles(nodeID string) (attach.TLSFiles, error) {
	if f.Fleet.TLS.Cert == "" {
		return attach.TLSFiles{}, nil
	}
	files := f.TLS(identity.Proxy, nodeID)
	out := attach.TLSFiles{Cert: files.Cert, Key: files.Key, CA: files.CA}
	for _, p := range [...]*string{&out.Cert, &out.Key, &out.CA} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return out, fmt.Errorf("attach: tls: %w", err)
		}
		*p = abs
	}
	return out, nil
}

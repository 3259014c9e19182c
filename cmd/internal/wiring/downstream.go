package wiring

import (
	"fmt"
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
)

// DownstreamCertificate reads the certificate that proxies present to clients; nil
// where clients connect in plain text. The control plane reads it for all Envoys,
// and each embedded proxy reads it for itself.
func (f *Fleet) DownstreamCertificate(log *slog.Logger) (*certs.Downstream, error) {
	t := f.Fleet.Proxy.TLS
	if t.Cert == "" {
		return nil, nil
	}
	d, err := certs.NewDownstream(certs.DownstreamConfig{Cert: f.resolvePath(t.Cert), Key: f.resolvePath(t.Key), Named: true, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("proxy.tls: %w", err)
	}
	return d, nil
}

package wiring

import (
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/certwatch"
)

// DownstreamCertificate reads the certificate that clients are shown; nil where they speak plain
// text. The files are those of the process that reads them: the control plane,
// for all Envoys, and each embedded proxy.
func (f *Fleet) DownstreamCertificate(log *slog.Logger) (*certwatch.Files, error) {
	t := f.Fleet.Proxy.TLS
	if t.Cert == "" {
		return nil, nil
	}
	return certwatch.New(certwatch.Config{Cert: f.resolvePath(t.Cert), Key: f.resolvePath(t.Key), Logger: log})
}

package wiring

import (
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/internal/certwatch"
)

// Edge reads the certificate that clients are shown; nil where they speak plain
// text. The files are those of the process that reads them: the control plane,
// for all Envoys, and each embedded proxy.
func (f *Fleet) Edge(log *slog.Logger) (*certwatch.Files, error) {
	t := f.Fleet.Proxy.TLS
	if t.Cert == "" {
		return nil, nil
	}
	return certwatch.New(certwatch.Config{Cert: f.path(t.Cert), Key: f.path(t.Key), Logger: log})
}

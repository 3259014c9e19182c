package wire

import (
	"log/slog"

	"github.com/cascadeinfer/cascade/cmd/edge"
)

// Edge reads the certificate that clients are shown; nil where they speak plain
// text. The files are those of the process that reads them: the control plane,
// for all Envoys, and each embedded proxy.
func (f *Fleet) Edge(log *slog.Logger) (*edge.Files, error) {
	t := f.Fleet.Proxy.TLS
	if t.Cert == "" {
		return nil, nil
	}
	return edge.New(edge.Config{Cert: f.path(t.Cert), Key: f.path(t.Key), Logger: log})
}

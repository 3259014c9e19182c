package wiring

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/goccy/go-yaml"
)

// Digest identifies the content of the fleet file, so that control planes can compare what
// they have read. It leaves out control.listen, admin, name and peers: they say where and what
// one control plane is, by ${POD_IP} and ${POD_NAME} in a file that all share, and each lists the
// others as its peers.
func (f *Fleet) Digest() string {
	shared := f.Fleet
	shared.Control.Listen, shared.Control.Admin, shared.Control.Name, shared.Control.Peers = "", "", "", nil
	text, err := yaml.Marshal(shared)
	if err != nil {
		return "" // what was decoded can be encoded
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

package cache

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Digest names a state of several resources: the version_info of a SotW
// response. It depends on the listed resources' names and versions alone,
// which must come sorted by name, as from Set.All.
func Digest(rs []*resources.Resource) string {
	h := sha256.New()
	for _, r := range rs {
		h.Write([]byte(r.Name))
		h.Write([]byte{0})
		h.Write([]byte(r.Version))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

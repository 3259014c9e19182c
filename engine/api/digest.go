package api

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Sizes of a handle and of a digest.
const (
	HandleBytes = 16
	DigestBytes = sha256.Size
)

// Digest returns the digest of everything that the KV of token ids depends on, in hexadecimal: the
// engine's fingerprint, the adapter's name ("" for none), the request's cache salt ("" for none) and
// the ids. Each text is preceded by its length in four bytes, little endian like the ids.
func Digest(fingerprint, adapter, salt string, ids []uint32) string {
	var b []byte
	for _, text := range [...]string{fingerprint, adapter, salt} {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

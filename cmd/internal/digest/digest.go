// Package digest names inputs and programs by short digests, so that a stored result is used again only for
// the inputs and by the program that made it.
package digest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
)

// OfJSON returns a digest of the JSON of inputs.
func OfJSON(inputs ...any) (string, error) {
	text, err := json.Marshal(inputs)
	if err != nil {
		return "", err
	}
	return of(text), nil
}

// OfProgram identifies the running program.
func OfProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	const maxProgram = 1 << 30
	text, err := fileio.Read(path, maxProgram)
	if err != nil {
		return "", err
	}
	return of(text), nil
}

func of(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

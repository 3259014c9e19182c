package runstore

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
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
	text, err := atomicfile.Read(path, maxProgram)
	if err != nil {
		return "", err
	}
	return of(text), nil
}

func of(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

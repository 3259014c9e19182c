package wiring

import (
	"fmt"
	"os"
	"strings"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/xds/console"
)

// consoleToken reads the token of orders from the console; "" where none is configured. Its errors
// name the file only.
func (f *Fleet) consoleToken() (string, error) {
	path := f.resolvePath(f.Fleet.Control.ConsoleTokenFile)
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o027 != 0 {
		return "", fmt.Errorf("%s: its group may write it, or others may read it (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	text, err := atomicfile.Read(path, 2*console.MaxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimRight(string(text), "\r\n")
	if err := console.CheckToken(token); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return token, nil
}

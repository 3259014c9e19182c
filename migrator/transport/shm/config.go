package shm

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// The bounds of every boundary.
const (
	maxPath     = 100              // bytes of a socket's path; the kernel takes 107
	checkEvery  = 64 << 20         // bytes copied between two checks
	idleMapping = 30 * time.Second // that a mapping which nobody uses is kept
	maxIdle     = 4                // such mappings
)

// Config is what a Transport needs.
type Config struct {
	// Dir is where the sockets of this machine's sources are: an absolute path of
	// at most 80 bytes, made with mode 0700 if missing. Sources of one user may
	// share it. Required.
	Dir string
	// Pool has the own engine's memory, whose File a source hands on. Required.
	Pool transport.Pool
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

// nameLength is that of a socket in Dir, the slash included.
const nameLength = 20

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("shm transport: Pool is missing")
	}
	if !filepath.IsAbs(c.Dir) || len(c.Dir)+nameLength > maxPath {
		return c, fmt.Errorf("shm transport: Dir %q must be an absolute path of at most %d bytes", c.Dir, maxPath-nameLength)
	}
	c.Dir = filepath.Clean(c.Dir)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

package shm

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

const (
	maxPath     = 100              // bytes of a socket's path; the kernel accepts 107
	checkEvery  = 64 << 20         // bytes copied between two checks of the grant
	idleMapping = 30 * time.Second // after which an unused mapping is unmapped
	maxIdle     = 4                // unused mappings that are kept
)

// Config configures a Transport.
type Config struct {
	// Dir is the directory of the sockets of this host's sources: an absolute path of
	// at most 80 bytes, created with mode 0700 if missing. Sources of one user may
	// share it. Required.
	Dir string
	// Pool has the local engine's memory; a source sends the File of that memory to
	// receivers. Required.
	Pool transport.Pool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// nameLength is the length of a socket's name in Dir, including the slash.
const nameLength = 20

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("shm transport: Pool is required")
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

package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// suffix distinguishes the sockets of this transport from others in the directory.
const suffix = ".cuda"

// maxDir is the longest path of Dir in bytes: the path of a socket must fit.
const maxDir = 80

// Config configures a Transport.
type Config struct {
	// Dir is the directory of the sockets of this host's sources: an absolute path of at
	// most 80 bytes, created with mode 0700 if missing. Sources of one user may share it.
	// Required.
	Dir string
	// Pool has the local engine's memory. The transport uses the GPU of that memory,
	// which Attach or Allocate made; the caller closes the GPU after Run. Required.
	Pool transport.Pool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("cuda transport: Pool is required")
	}
	if !filepath.IsAbs(c.Dir) || len(c.Dir) > maxDir {
		return c, fmt.Errorf("cuda transport: Dir %q must be an absolute path of at most %d bytes", c.Dir, maxDir)
	}
	c.Dir = filepath.Clean(c.Dir)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

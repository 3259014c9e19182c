package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// suffix tells a source's socket from those of others in the directory.
const suffix = ".cuda"

// maxDir is how long the path of Dir may be, in bytes: a socket's must fit.
const maxDir = 80

// Config is what a Transport needs.
type Config struct {
	// Dir is where the sockets of this machine's sources are: an absolute path of
	// at most 80 bytes, made with mode 0700 if missing. Sources of one user may
	// share it. Required.
	Dir string
	// Pool has the own engine's memory. On whichever GPU it is, by Attach or Make, is
	// what the transport works on; the caller closes that after Run. Required.
	Pool transport.Pool
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("cuda transport: Pool is missing")
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

package policydev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// Subject is a module to test, with its configuration.
type Subject struct {
	Path          string
	Bytes         int
	Module        *host.Module
	Configuration []byte
}

// Open loads a module as a host would, but without limits on wall time: those depend on
// the load of the host, and fuel bounds every call. The lines that the module logs go to the
// logger; nil discards them. The caller closes it.
func Open(ctx context.Context, path string, configuration []byte, logger *slog.Logger) (*Subject, error) {
	code, err := ReadModule(path)
	if err != nil {
		return nil, err
	}
	m, err := host.Load(ctx, host.Config{Cache: cacheDir(), Logger: logger}, code)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Subject{Path: path, Bytes: len(code), Module: m, Configuration: configuration}, nil
}

// Close frees the module. All instances must be closed before.
func (s *Subject) Close() error { return s.Module.Close() }

// SHA256 returns the module's digest in hexadecimal.
func (s *Subject) SHA256() string { return lifecycle.Digest(s.Module.SHA256()).String() }

// kinds returns the kinds that the module decides.
func (s *Subject) kinds() []abi.Kind {
	return slices.DeleteFunc(s.Module.Kinds(), func(k abi.Kind) bool { return k == abi.Configure })
}

// instance makes a configured instance.
func (s *Subject) instance() (*host.Instance, error) {
	i, err := s.Module.Instantiate()
	if err != nil {
		return nil, fmt.Errorf("%s: a new instance: %w", s.Path, err)
	}
	if err := i.Configure(abi.Call{}, s.Configuration); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.Path, err), i.Close())
	}
	return i, nil
}

// ReadModule reads a module, at most of the size that hosts accept.
func ReadModule(path string) ([]byte, error) {
	return atomicfile.Read(path, meter.MaxSize)
}

// cacheDir returns the user's folder for machine code, "" if there is none.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir = filepath.Join(dir, "cascade", "policies")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "" // without a cache, loading is only slower
	}
	return dir
}

//go:build unix && !linux

package kv

import (
	"errors"
	"os"
)

// sharedFile creates an unlinked temporary file: memfd exists on Linux only.
func sharedFile() (*os.File, error) {
	f, err := os.CreateTemp("", "cascade-kv-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// seal does nothing: only memfds have seals.
func seal(*os.File) error { return nil }

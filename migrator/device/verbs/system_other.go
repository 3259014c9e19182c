//go:build !linux

package verbs

import (
	"os"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func pollable(int, string) (*os.File, error) { return nil, device.ErrNoCgo }

func mayLock(uint64) error { return nil }

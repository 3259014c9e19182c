//go:build !linux

package verbs

import (
	"os"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func newPollableFile(int, string) (*os.File, error) { return nil, device.ErrNoCgo }

func checkMemlock(uint64) error { return nil }

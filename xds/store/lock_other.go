//go:build !unix

package store

import (
	"context"
	"errors"
)

// lock is not implemented on this system.
func lock(context.Context, string) (unlock func(), err error) {
	return nil, errors.ErrUnsupported
}

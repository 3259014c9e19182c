package config

import (
	"errors"

	"github.com/cascadeinfer/cascade/policies/length"
)

const (
	usualBodyLimit = length.BodyLimit >> 20 // MiB
	maxBodyLimit   = 64                     // MiB
	// BodyRate is the slowest rate at which a body may arrive, in bytes per second: one that brings less in 10 s ends
	// with 408.
	BodyRate = 3277
)

// BodyLimit is the size of the largest body, in MiB. What bodies cost a process while they arrive or wait follows from
// it. A request that has no room is refused with 503, which proxies retry at another replica.
type BodyLimit int

// Bytes returns the limit in bytes.
func (b BodyLimit) Bytes() int64 { return int64(b) << 20 }

// FrontEndBytes returns the memory of a migrator's front end for the bodies of clients.
func (b BodyLimit) FrontEndBytes() int64 { return 16 * b.Bytes() }

// ProxyBytes returns the memory of an embedded proxy for bodies.
func (b BodyLimit) ProxyBytes() int64 { return 32 * b.Bytes() }

// Validate returns an error if the limit is out of range.
func (b BodyLimit) Validate() error {
	var c checker
	b.validate(&c)
	if len(c.errs) == 0 {
		return nil
	}
	return errors.New(c.errs[0].Msg)
}

func (b BodyLimit) validate(c *checker) { checkRange(c, "proxy.body_limit", int(b), 1, maxBodyLimit) }

package slothost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Defaults of a Config, and its limit of instances.
const (
	DefaultEvery  = 64
	DefaultTick   = 100 * time.Millisecond
	mostInstances = 1024
)

// Config configures Slots.
type Config struct {
	// Kinds are the kinds that the host decides; each has one slot. Required.
	Kinds []abi.Kind
	// Native decides while no module does, and answers the calls that a module does
	// not answer. It must have a policy for each of Kinds; those of other kinds are
	// returned as they are.
	Native Native
	// Ring holds the keys whose signatures are valid. Required: a host without trusted
	// keys needs no slots.
	Ring sign.Ring
	// Fetch returns the module with a digest, for specs that do not contain it. The error may
	// be temporary: it is tried again. Nil means that specs contain their modules.
	Fetch func(context.Context, lifecycle.Digest) ([]byte, error)
	// Limits bound the calls of each kind; a statement's grant can only lower them.
	Limits [abi.NumKinds]host.Limit
	// Gates has the promotion gates and fault limits of each kind. A Canary.Compared of 0
	// becomes half of the recorded share of Canary.Calls, and at least 1.
	Gates [abi.NumKinds]Gates
	// Cache is the folder for compiled code; see host.Config. "" means none.
	Cache string
	// File keeps across restarts which statements were admitted. Without it, "", a
	// host that restarts admits any signed statement.
	File string
	// Every is the recording rate: on average one in Every calls for a bid, an outlier
	// or a place is recorded, to try modules in shadow on; of the other kinds every
	// call is. 0 means DefaultEvery. Below 0 nothing is recorded, and then no module
	// leaves shadow.
	Every int
	// Tick is the interval at which gates are checked and recorded calls replayed. 0
	// means DefaultTick.
	Tick time.Duration
	// Instances is how many calls can be in progress in one module that decides for
	// one request. 0 means GOMAXPROCS. The other kinds have one instance.
	Instances int
	// Now is the clock of gates, fault limits and expiring statements, and the time
	// that modules see, in microseconds since 1970. Nil means time.Now.
	Now func() time.Time
	// Logger logs switches, modules that ended, and their faults. Nil discards them.
	Logger *slog.Logger
}

// complete returns the config with its defaults. The error names the bad field.
func (c Config) complete() (Config, error) {
	if len(c.Kinds) == 0 {
		return c, errors.New("kinds: required")
	}
	c.Kinds = slices.Clone(c.Kinds)
	slices.Sort(c.Kinds)
	for i, k := range c.Kinds {
		switch {
		case k <= abi.Configure || k >= abi.NumKinds:
			return c, fmt.Errorf("kinds: %s is not a policy kind", k)
		case i > 0 && k == c.Kinds[i-1]:
			return c, fmt.Errorf("kinds: %s is listed twice", k)
		case !c.Native.Decides(k):
			return c, fmt.Errorf("native: no policy for %s", k)
		}
	}
	if err := c.Ring.Validate(); err != nil {
		return c, fmt.Errorf("ring: %w", err)
	}
	if c.Tick < 0 || c.Instances < 0 || c.Instances > mostInstances {
		return c, fmt.Errorf("tick must not be negative, instances must be from 0 to %d", mostInstances)
	}
	c.Tick = cmp.Or(c.Tick, DefaultTick)
	c.Every = cmp.Or(c.Every, DefaultEvery)
	c.Every = max(c.Every, 0)
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c, nil
}

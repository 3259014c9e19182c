package slothost

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Defaults of a Config.
const (
	DefaultEvery = 64
)

// Config sets a Set up.
type Config struct {
	// Kinds are those that the host decides; each has one slot. Required.
	Kinds []abi.Kind
	// Native answers while no module does, and where a module does not. One is
	// needed for each of Kinds. Those of other kinds answer for themselves.
	Native policy.Native
	// Ring is whose signatures count. Required: a host that trusts nobody needs no
	// slots.
	Ring sign.Ring
	// Limits bound the calls by kind; a statement's grant can only lower them.
	Limits [abi.NumKinds]host.Limit
	// Gates are the way up of each kind, and its breaker. Kind and Floor and Resume
	// are filled in. Canary.Compared, where it is 0, becomes half of what is
	// recorded of Canary.Calls, and at least 1.
	Gates [abi.NumKinds]promotion.Config
	// Cache is the folder for machine code, with its bounds; see host.Config. ""
	// means none.
	Cache        string
	CacheBytes   int64
	CacheModules int
	// File keeps what was admitted across restarts. Without it, "", a host that
	// restarts admits any statement that is signed.
	File string
	// Every nth call for a bid, an outlier or a place is recorded, on average, to
	// try modules in shadow on; of the other kinds every one is. 0 means
	// DefaultEvery, below 0 none, and then no module leaves shadow.
	Every int
	// Tick is how often gates are looked at, and recorded calls are replayed. 0
	// means swap.DefaultTick.
	Tick time.Duration
	// Instances is how many calls can be in one module at once that decides for one
	// request; see policy.Config, whose default 0 means, too. The others have one.
	Instances int
	// Now is the clock: of gates, of breakers, of statements' ends, and of what
	// modules see as the time, in microseconds since 1970. Nil means time.Now.
	Now func() time.Time
	// Logger tells of switches, of modules that ended and of their faults. Nil
	// discards it.
	Logger *slog.Logger
}

// complete returns the config with its defaults, or what is wrong with it.
func (c Config) complete() (Config, error) {
	if len(c.Kinds) == 0 {
		return c, errors.New("kinds: name those that the host decides")
	}
	c.Kinds = slices.Clone(c.Kinds)
	slices.Sort(c.Kinds)
	for i, k := range c.Kinds {
		switch {
		case k <= abi.Configure || k >= abi.NumKinds:
			return c, fmt.Errorf("kinds: %s decides nothing", k)
		case i > 0 && k == c.Kinds[i-1]:
			return c, fmt.Errorf("kinds: %s is there twice", k)
		case !decides(c.Native, k):
			return c, fmt.Errorf("native: there is no policy for %s", k)
		}
	}
	if err := c.Ring.Validate(); err != nil {
		return c, fmt.Errorf("ring: %w", err)
	}
	if c.Every == 0 {
		c.Every = DefaultEvery
	}
	c.Every = max(c.Every, 0)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// decides reports whether there is a native policy for a kind.
func decides(n policy.Native, k abi.Kind) bool {
	switch k {
	case abi.Partition:
		return n.Partitioner != nil
	case abi.Refine:
		return n.Refiner != nil
	case abi.Quote:
		return n.Quoter != nil
	case abi.Select:
		return n.Selector != nil
	case abi.Outlier:
		return n.Detector != nil
	case abi.Place:
		return n.Placer != nil
	case abi.Guard:
		return n.Guard != nil
	}
	return false
}

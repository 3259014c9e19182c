// Package kvevents subscribes to the KV events of one engine (its --kv-events-config): which
// blocks it has stored in its prefix cache and removed from it. A Subscriber applies them to an
// Index, in order and without gaps as far as the engine can replay what was lost.
//
// The engine publishes batches by a ZeroMQ PUB socket, which either connects to the Subscriber
// or is connected to, and replays past batches by a ROUTER socket. Some engines name the topic in
// each answer of a replay (4 frames), others do not (3 frames). There is no snapshot: what the engine has stored before its oldest batch is unknown
// until it is stored again.
//
// While batches are known to be missing, the Index is not live (Config.SetLive): it may name
// blocks that the engine has removed. It keeps what it has, and is live again when a replay has
// brought what is missing, or has failed to several times; then what is wrong in it stays until
// the engine stores or removes it again, or the capacity pushes it out.
//
// Neither side is authenticated, and the batches contain the tokens of prompts, so addresses
// must be loopback. What arrives is checked all the same: messages and batches that are
// malformed, or of another topic or rank, change nothing and are counted.
package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Index is what the events are applied to, in order and by one goroutine. It must not keep the
// slices that it gets.
type Index interface {
	Store(*prefix.Stored)
	Remove(prefix.Removed)
	// Clear forgets all blocks: the engine has reset its cache, or may have started anew.
	Clear()
}

// Config configures a Subscriber. Listen or Dial, Model and Index are required.
type Config struct {
	// Listen is the loopback address (host:port) to which the engine connects: its "endpoint"
	// is tcp:// and this address.
	Listen string
	// Dial is the loopback address at which the engine listens, in place of Listen: its
	// "endpoint" is tcp://*: and the port.
	Dial string
	// Replay is the loopback address of the engine's "replay_endpoint". Without it, what is
	// lost stays unknown.
	Replay string
	// Topic is the engine's "topic". Batches of others are ignored.
	Topic string
	// Model is the model's name by which prompts are hashed (prefix.Root).
	Model string
	// Rank is the engine's data-parallel rank.
	Rank uint64
	// Index gets the events.
	Index Index
	// SetLive is called with true when the Index is what the engine holds, as far as events
	// say, and with false when it no longer is. It may be nil. It is called by the goroutine
	// that applies the events.
	SetLive func(live bool)
	// Log gets connections and losses; nil discards them.
	Log *slog.Logger
	// ListenTCP and DialTCP open connections. Nil means those of package net.
	ListenTCP func(ctx context.Context, address string) (net.Listener, error)
	DialTCP   func(ctx context.Context, address string) (net.Conn, error)
}

const dialTimeout = 5 * time.Second

// validate checks the required fields and fills in the defaults.
func (c *Config) validate() error {
	if (c.Listen == "") == (c.Dial == "") {
		return errors.New("kvevents: set one of Listen and Dial")
	}
	for _, a := range [...]struct{ name, address string }{{"Listen", c.Listen}, {"Dial", c.Dial}, {"Replay", c.Replay}} {
		if a.address == "" {
			continue
		}
		if ap, err := netip.ParseAddrPort(a.address); err != nil || !ap.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("kvevents: %s: %q: must be a loopback address and a port, such as 127.0.0.1:5557", a.name, a.address)
		}
	}
	switch {
	case c.Index == nil:
		return errors.New("kvevents: Index is required")
	case c.Model == "":
		return errors.New("kvevents: Model is required")
	}
	if c.SetLive == nil {
		c.SetLive = func(bool) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.ListenTCP == nil {
		c.ListenTCP = func(ctx context.Context, address string) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		}
	}
	if c.DialTCP == nil {
		c.DialTCP = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
		}
	}
	return nil
}

// Status is what a Subscriber does, and what it has done since it was made.
type Status struct {
	Connected bool // to the engine's publisher
	Live      bool // as SetLive

	Connections uint64
	Batches     uint64 // applied
	Duplicates  uint64 // batches that came live and by a replay
	Gaps        uint64 // where live batches were missing
	Lost        uint64 // batches that no replay brought
	Restarts    uint64 // numbers that began anew on one connection
	Replays     uint64
	Failed      uint64 // replays that did not come to their end
	Malformed   uint64 // batches that were dropped since they are malformed
	OtherRank   uint64 // batches that were dropped since they are of another data-parallel rank
	Rejected    uint64 // messages that are no batches of the topic, and connections without a publisher
	Ignored     uint64 // blocks that hold no prefix by themselves, or are elsewhere
}

// Subscriber applies the events of one engine to an Index. Its methods may be called at any
// time.
type Subscriber struct {
	cfg Config

	mu     sync.Mutex
	status Status
}

// New returns a Subscriber, which Run starts.
func New(cfg Config) (*Subscriber, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Subscriber{cfg: cfg}, nil
}

// Status returns what the Subscriber does.
func (s *Subscriber) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

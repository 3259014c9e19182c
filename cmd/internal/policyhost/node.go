package policyhost

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// How often a module is asked for that nobody gives. The first pause is drawn
// from 0 to firstPause, so that a fleet does not come at once.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 15 * time.Second
	// againAfter is when a want that could not be applied is tried again: a full
	// disk has room by then, perhaps.
	againAfter = 15 * time.Second
)

// Fetch returns the bytes of a module. The error may be gone at the next try.
type Fetch func(ctx context.Context, digest sign.Digest) ([]byte, error)

// Slots is what a Node drives; *slothost.Set is one.
type Slots interface {
	Check(slothost.Want) error
	Missing(slothost.Want) []sign.Digest
	Apply(slothost.Want) error
	RollBack(slothost.Want)
	Status() []slothost.Status
	Run(context.Context) error
}

var _ Slots = (*slothost.Set)(nil)

// NodeConfig sets a Node up.
type NodeConfig struct {
	// Slots are the host's. The Node runs them. Required.
	Slots Slots
	// Fetch gets modules that are not in the wants themselves. Required.
	Fetch Fetch
	// Logger tells of wants that are refused and modules that cannot be had; nil
	// discards.
	Logger *slog.Logger
}

// Node keeps a host's slots as the fleet wants them. Its methods may be called
// from any goroutine; Run once.
type Node struct {
	slots Slots
	fetch Fetch
	log   *slog.Logger
	news  chan struct{} // capacity 1

	mu      sync.Mutex
	wants   map[abi.Kind]slothost.Want // the newest of each slot
	fresh   map[abi.Kind]bool          // not applied yet
	refused map[abi.Kind]string        // why the newest was not taken
	stuck   map[abi.Kind]string        // why it could not be written down; it is tried again
	awaited map[sign.Digest]string     // modules that are being fetched; why the last try failed
}

// NewNode checks the configuration. Nothing is built before Run.
func NewNode(c NodeConfig) (*Node, error) {
	if c.Slots == nil || c.Fetch == nil {
		return nil, errors.New("modules: Slots and Fetch must be given")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Node{
		slots: c.Slots, fetch: c.Fetch, log: c.Logger, news: make(chan struct{}, 1),
		wants: make(map[abi.Kind]slothost.Want), fresh: make(map[abi.Kind]bool), refused: make(map[abi.Kind]string), stuck: make(map[abi.Kind]string),
		awaited: make(map[sign.Digest]string),
	}, nil
}

// Check says why a want cannot be taken, now or ever. The text is kept for the
// status until a want of the slot is taken. What a want that is refused says was
// rolled back does not run on all the same.
func (n *Node) Check(w slothost.Want) error {
	err := n.slots.Check(w)
	if err != nil {
		n.slots.RollBack(w)
	}
	n.note(w.Kind, err)
	return err
}

// note keeps why a slot's newest want was refused.
func (n *Node) note(k abi.Kind, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != n.refused[k] {
		n.log.Warn("what this slot should run is refused; it goes on as before", "slot", k.String(), "error", text)
	}
	n.refused[k] = text
}

// Take has a slot run what is wanted, as soon as Run comes to it. The want must
// have passed Check.
func (n *Node) Take(w slothost.Want) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wants[w.Kind], n.fresh[w.Kind] = w, true
	n.tell()
}

// tell has the loop look again.
func (n *Node) tell() {
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// Run runs the slots until ctx ends, applies the wants and fetches modules. It
// returns when all of it has stopped.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.slots.Run(ctx) })
	g.Go(func() error {
		n.follow(ctx)
		return nil
	})
	return g.Wait()
}

// module is bytes that were fetched.
type module struct {
	digest sign.Digest
	bytes  []byte
}

// follow applies wants as they come, and again when their modules are there.
func (n *Node) follow(ctx context.Context) {
	var (
		fetches sync.WaitGroup
		got     = make(chan module)
		here    = make(map[sign.Digest][]byte)
		ends    = make(map[sign.Digest]context.CancelFunc) // of the fetches under way
	)
	defer fetches.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	retry := time.NewTimer(againAfter)
	retry.Stop()
	defer retry.Stop()
	for {
		missing, failed := n.apply(here)
		if failed {
			retry.Reset(againAfter)
		}
		for digest, end := range ends {
			if !missing[digest] {
				end()
				delete(ends, digest)
			}
		}
		if !failed {
			clear(here) // what is still missing after that comes again
		}
		for digest := range missing {
			if ends[digest] != nil || here[digest] != nil {
				continue
			}
			fetching, end := context.WithCancel(ctx)
			ends[digest] = end
			fetches.Go(func() {
				if b := n.obtain(fetching, digest); b != nil {
					select {
					case got <- module{digest, b}:
					case <-fetching.Done():
					}
				}
			})
		}
		select {
		case <-n.news:
		case <-retry.C:
		case m := <-got:
			here[m.digest] = m.bytes
			n.again(m.digest)
			if end := ends[m.digest]; end != nil {
				end()
				delete(ends, m.digest)
			}
		case <-ctx.Done():
			return
		}
	}
}

// again marks the slots that wait for a module.
func (n *Node) again(digest sign.Digest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, w := range n.wants {
		if slices.ContainsFunc(w.Candidates, func(c slothost.Candidate) bool { return c.SHA256 == digest }) {
			n.fresh[k] = true
		}
	}
}

// apply brings the slots to what is wanted as far as the modules are here, and
// returns what is missing for the rest, and whether a want could not be applied,
// which is due again then.
func (n *Node) apply(here map[sign.Digest][]byte) (missing map[sign.Digest]bool, failed bool) {
	n.mu.Lock()
	var due, all []slothost.Want
	for k, w := range n.wants {
		all = append(all, w)
		if n.fresh[k] {
			due = append(due, w)
		}
	}
	clear(n.fresh)
	n.mu.Unlock()
	for _, w := range due {
		w.Candidates = slices.Clone(w.Candidates)
		for i := range w.Candidates {
			if c := &w.Candidates[i]; c.Module == nil {
				c.Module = here[c.SHA256]
			}
		}
		err := n.slots.Apply(w)
		if err != nil {
			n.note(w.Kind, err)
		}
		n.mu.Lock()
		switch {
		case errors.Is(err, slothost.ErrNotWritten):
			n.fresh[w.Kind], n.stuck[w.Kind], failed = true, err.Error(), true
		case n.stuck[w.Kind] != "" && n.stuck[w.Kind] == n.refused[w.Kind] && err == nil:
			n.refused[w.Kind] = ""
			fallthrough
		default:
			delete(n.stuck, w.Kind)
		}
		n.mu.Unlock()
	}
	missing = make(map[sign.Digest]bool)
	for _, w := range all {
		for _, digest := range n.slots.Missing(w) {
			missing[digest] = true
		}
	}
	return missing, failed
}

// obtain asks for a module until it has it, or ctx ends: then it returns nil.
func (n *Node) obtain(ctx context.Context, digest sign.Digest) []byte {
	n.await(digest, "")
	defer n.arrived(digest)
	pause := time.Duration(rand.Int64N(int64(firstPause)))
	for try := 0; ; try++ {
		b, err := n.fetch(ctx, digest)
		if err == nil && sha256.Sum256(b) != digest {
			err = fmt.Errorf("%d bytes came that are another module's", len(b))
		}
		if err == nil {
			return b
		}
		n.await(digest, err.Error())
		if ctx.Err() == nil && (try == 0 || pause >= lastPause) {
			n.log.Warn("a module cannot be fetched; trying again", "sha256", digest.String(), "tries", try+1, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause+firstPause/2, lastPause)
	}
}

// await notes how it is going with a module that is being fetched.
func (n *Node) await(digest sign.Digest, why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.awaited[digest] = why
}

// arrived ends the wait for a module.
func (n *Node) arrived(digest sign.Digest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.awaited, digest)
}

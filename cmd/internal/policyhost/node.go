package policyhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// The backoff between attempts to fetch a module. The first pause is drawn from 0 to
// minBackoff, so that the hosts of a fleet do not all ask at once.
const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
	// retryAfter is when a spec that could not be applied is tried again: a full disk
	// may have room by then.
	retryAfter = 15 * time.Second
)

// Fetch returns the bytes of a module. The error may be temporary.
type Fetch func(ctx context.Context, digest lifecycle.Digest) ([]byte, error)

// Slots is what a Node drives; *slothost.Slots is one.
type Slots interface {
	Check(lifecycle.SlotSpec) error
	Missing(lifecycle.SlotSpec) []lifecycle.Digest
	Apply(lifecycle.SlotSpec) error
	RollBack(lifecycle.SlotSpec)
	Status() []lifecycle.SlotStatus
	Run(context.Context) error
}

var _ Slots = (*slothost.Slots)(nil)

// NodeConfig configures a Node.
type NodeConfig struct {
	// Slots are the host's. The Node runs them. Required.
	Slots Slots
	// Fetch gets modules that the specs do not contain. Required.
	Fetch Fetch
	// Logger logs refused specs and modules that cannot be fetched. Nil discards them.
	Logger *slog.Logger
}

// Node applies the specs of a host's slots, and fetches the modules that they need. Its
// methods may be called from any goroutine; Run is called once.
type Node struct {
	slots Slots
	fetch Fetch
	log   *slog.Logger
	wake  chan struct{} // capacity 1

	mu       sync.Mutex
	specs    map[lifecycle.Kind]lifecycle.SlotSpec // the newest of each slot
	due      map[lifecycle.Kind]bool               // not applied yet
	refused  map[lifecycle.Kind]string             // why the newest was refused
	stuck    map[lifecycle.Kind]string             // why it could not be saved; it is retried
	fetching map[lifecycle.Digest]string           // modules that are being fetched; why the last attempt failed
}

// NewNode returns a Node. Nothing is built before Run.
func NewNode(c NodeConfig) *Node {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Node{
		slots: c.Slots, fetch: c.Fetch, log: c.Logger, wake: make(chan struct{}, 1),
		specs: make(map[lifecycle.Kind]lifecycle.SlotSpec), due: make(map[lifecycle.Kind]bool), refused: make(map[lifecycle.Kind]string),
		stuck: make(map[lifecycle.Kind]string), fetching: make(map[lifecycle.Digest]string),
	}
}

// Check returns why a spec is refused, now or ever. Status reports the reason until a
// spec of the slot is accepted. Generations that a refused spec rolls back are rolled
// back nevertheless.
func (n *Node) Check(w lifecycle.SlotSpec) error {
	err := n.slots.Check(w)
	if err != nil {
		n.slots.RollBack(w)
	}
	n.recordRefusal(w.Kind, err)
	return err
}

// recordRefusal keeps why the newest spec of a slot was refused; nil if it was not.
func (n *Node) recordRefusal(k lifecycle.Kind, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != n.refused[k] {
		n.log.Warn("policy slot: configuration rejected, keeping the current module", "slot", k, "error", text)
	}
	n.refused[k] = text
}

// SetSpec makes a spec, which has passed Check, the desired state of its slot. Run
// applies it.
func (n *Node) SetSpec(w lifecycle.SlotSpec) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.specs[w.Kind], n.due[w.Kind] = w, true
	n.wakeLoop()
}

// wakeLoop makes the loop apply specs.
func (n *Node) wakeLoop() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run runs the slots, applies the specs and fetches modules until ctx ends. It returns
// when everything has stopped.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.slots.Run(ctx) })
	g.Go(func() error {
		n.applySpecs(ctx)
		return nil
	})
	return g.Wait()
}

// module is a module that was fetched.
type module struct {
	digest lifecycle.Digest
	bytes  []byte
}

// applySpecs applies specs as they come, and again when their modules have been
// fetched.
func (n *Node) applySpecs(ctx context.Context) {
	var (
		fetches sync.WaitGroup
		got     = make(chan module)
		fetched = make(map[lifecycle.Digest][]byte)
		cancels = make(map[lifecycle.Digest]context.CancelFunc) // of the fetches in progress
	)
	defer fetches.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	retry := time.NewTimer(retryAfter)
	retry.Stop()
	defer retry.Stop()
	for {
		missing, failed := n.apply(fetched)
		if failed {
			retry.Reset(retryAfter)
		}
		for digest, end := range cancels {
			if !missing[digest] {
				end()
				delete(cancels, digest)
			}
		}
		if !failed {
			clear(fetched) // what is still missing is fetched again
		}
		for digest := range missing {
			if cancels[digest] != nil || fetched[digest] != nil {
				continue
			}
			fetching, end := context.WithCancel(ctx)
			cancels[digest] = end
			fetches.Go(func() {
				if b := n.fetchModule(fetching, digest); b != nil {
					select {
					case got <- module{digest, b}:
					case <-fetching.Done():
					}
				}
			})
		}
		select {
		case <-n.wake:
		case <-retry.C:
		case m := <-got:
			fetched[m.digest] = m.bytes
			n.markWaiting(m.digest)
			if end := cancels[m.digest]; end != nil {
				end()
				delete(cancels, m.digest)
			}
		case <-ctx.Done():
			return
		}
	}
}

// markWaiting marks the slots that wait for a module as due.
func (n *Node) markWaiting(digest lifecycle.Digest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, w := range n.specs {
		if slices.ContainsFunc(w.Candidates, func(c lifecycle.Candidate) bool { return c.SHA256 == digest }) {
			n.due[k] = true
		}
	}
}

// apply applies the specs that are due, as far as their modules are loaded or in
// fetched. It returns the modules that are missing for the rest, and whether a spec
// could not be applied, which is then due again.
func (n *Node) apply(fetched map[lifecycle.Digest][]byte) (missing map[lifecycle.Digest]bool, failed bool) {
	n.mu.Lock()
	var due, all []lifecycle.SlotSpec
	for k, w := range n.specs {
		all = append(all, w)
		if n.due[k] {
			due = append(due, w)
		}
	}
	clear(n.due)
	n.mu.Unlock()
	for _, w := range due {
		w.Candidates = slices.Clone(w.Candidates)
		for i := range w.Candidates {
			if c := &w.Candidates[i]; c.Module == nil {
				c.Module = fetched[c.SHA256]
			}
		}
		err := n.slots.Apply(w)
		if err != nil {
			n.recordRefusal(w.Kind, err)
		}
		n.mu.Lock()
		switch {
		case errors.Is(err, slothost.ErrNotWritten):
			n.due[w.Kind], n.stuck[w.Kind], failed = true, err.Error(), true
		case n.stuck[w.Kind] != "" && n.stuck[w.Kind] == n.refused[w.Kind] && err == nil:
			n.refused[w.Kind] = ""
			fallthrough
		default:
			delete(n.stuck, w.Kind)
		}
		n.mu.Unlock()
	}
	missing = make(map[lifecycle.Digest]bool)
	for _, w := range all {
		for _, digest := range n.slots.Missing(w) {
			missing[digest] = true
		}
	}
	return missing, failed
}

// fetchModule fetches a module, with retries. It returns nil when ctx ends first.
func (n *Node) fetchModule(ctx context.Context, digest lifecycle.Digest) []byte {
	n.setFetching(digest, "")
	defer n.endFetching(digest)
	pause := time.Duration(rand.Int64N(int64(minBackoff)))
	for try := 0; ; try++ {
		b, err := n.fetch(ctx, digest)
		if err == nil && lifecycle.Sum(b) != digest {
			err = fmt.Errorf("received %d bytes with another digest", len(b))
		}
		if err == nil {
			return b
		}
		n.setFetching(digest, err.Error())
		if ctx.Err() == nil && (try == 0 || pause >= maxBackoff) {
			n.log.Warn("fetching a policy module failed, retrying", "sha256", digest.String(), "attempts", try+1, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause+minBackoff/2, maxBackoff)
	}
}

// setFetching records that a module is being fetched, and why the last attempt failed.
func (n *Node) setFetching(digest lifecycle.Digest, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fetching[digest] = reason
}

// endFetching records that a module is not being fetched any more.
func (n *Node) endFetching(digest lifecycle.Digest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.fetching, digest)
}

package batch

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// mirror is what the notifications of a prefix cache say that it holds.
type mirror struct {
	t       *testing.T
	size    int
	held    map[kv.Hash]int    // how often a hash is stored
	content map[kv.Hash]uint64 // checksum of the salt and the ids up to the block
	twice   int                // hashes that were stored while they were held
	log     []string
}

func newMirror(t *testing.T, size int) *mirror {
	return &mirror{t: t, size: size, held: map[kv.Hash]int{}, content: map[kv.Hash]uint64{}}
}

func (m *mirror) BlocksStored(q *Sequence, first, end int) {
	m.log = append(m.log, fmt.Sprintf("+%d", end-first))
	ids := q.IDs(0, end*m.size)
	if first >= end || len(ids) != end*m.size {
		m.t.Fatalf("blocks %d to %d with %d ids", first, end, len(ids))
	}
	sum := fnv.New64a()
	fmt.Fprint(sum, q.Salt)
	for n := range end {
		h := q.BlockHash(n)
		if n < first && m.held[h] == 0 {
			m.t.Fatalf("block %d of %d to %d is not held", n, first, end)
		}
		testkit.NoError(m.t, binary.Write(sum, binary.LittleEndian, ids[n*m.size:(n+1)*m.size]))
		if before, known := m.content[h]; known && before != sum.Sum64() {
			m.t.Fatalf("hash %d has two contents", h)
		}
		m.content[h] = sum.Sum64()
		if n < first {
			continue
		}
		if m.held[h]++; m.held[h] > 1 {
			m.twice++
		}
	}
}

func (m *mirror) BlockRemoved(h kv.Hash) {
	m.log = append(m.log, "-")
	if m.held[h]--; m.held[h] < 0 {
		m.t.Fatalf("hash %d is removed and not held", h)
	}
}

func (m *mirror) CacheCleared() {
	m.log = append(m.log, "clear")
	clear(m.held)
}

// take returns what has been notified since the last call.
func (m *mirror) take() string {
	log := strings.Join(m.log, " ")
	m.log = nil
	return log
}

// What is notified in the steps of a few requests.
func TestCacheNotifications(t *testing.T) {
	c := setup{Blocks: 6, Block: 4, Batch: 4, Tokens: 64}
	s := c.scheduler(t, newModel(t))
	seen := newMirror(t, c.Block)
	s.Cache = seen
	run := func(what, want string, requests ...Request) {
		t.Helper()
		for _, r := range requests {
			r.IgnoreEOS = true
			s.Add(NewSequence(r, c.Block))
		}
		for !s.Idle() {
			s.Step()
		}
		if got := seen.take(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	ids := prompt(20, 20, 0)
	run("less than a block", "", Request{Prompt: ids[:3], MaxOutput: 1})
	run("two blocks and a part", "+2", Request{Prompt: ids[:10], MaxOutput: 1})
	run("a hit", "", Request{Prompt: ids[:10], MaxOutput: 1})
	run("a hit and a new block", "+1", Request{Prompt: ids[:13], MaxOutput: 1})
	// The last token is sampled and not computed.
	run("decoding fills a block", "+1 +1", Request{Prompt: prompt(6, 0, 1), MaxOutput: 3})
	run("eviction before the store", "- - +2", Request{Prompt: prompt(9, 0, 2), MaxOutput: 1})
	if !s.ResetCache(false) {
		t.Error("an idle scheduler does not reset its cache")
	}
	run("a reset, and then two equal requests at once", "clear +1 +1", Request{Prompt: ids[:5], MaxOutput: 1}, Request{Prompt: ids[:5], MaxOutput: 1})
	q := NewSequence(Request{Prompt: ids[:5], MaxOutput: 8, IgnoreEOS: true}, c.Block)
	s.Add(q)
	s.Step()
	s.Settle()
	if s.ResetCache(false) || seen.take() != "" {
		t.Error("the cache is reset while a request runs")
	}
	if !s.ResetCache(true) {
		t.Error("a running request is not preempted")
	}
	s.Step()
	if got := seen.take(); got != "clear +1" {
		t.Errorf("reset with a running request: %q", got)
	}
}

// Without an observer, steps allocate nothing for it; with one, notifications allocate nothing either.
func TestCacheObserverAllocations(t *testing.T) {
	c := setup{Blocks: 4096, Block: 4, Batch: 4, Tokens: 64}
	for _, observer := range []CacheObserver{nil, new(firstStored)} {
		s := c.scheduler(t, newModel(t))
		s.Cache = observer
		q := NewSequence(Request{Prompt: prompt(4, 4, 0), MaxOutput: 1 << 20, IgnoreEOS: true}, c.Block)
		q.ids, q.chain, q.blocks = slices.Grow(q.ids, 1<<14), slices.Grow(q.chain, 1<<12), slices.Grow(q.blocks, 1<<12)
		s.Add(q)
		s.Step()
		// The map of hashes grows, seldom: less than an allocation per step on average.
		if n := testing.AllocsPerRun(2000, func() { s.Step() }); n >= 1 {
			t.Errorf("observer %v: %v allocations per step", observer, n)
		}
	}
}

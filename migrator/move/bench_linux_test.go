package move_test

import (
	"context"
	"os"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/shm"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// A large pool of large blocks, like a real engine's: 16 tokens in 32 KiB, scaled down from 1.75
// MiB so that two pools fit into a small machine.
const (
	benchTokens = 16
	benchBlocks = 9000
	benchBytes  = 32 << 10
	longest     = 128 << 10 // tokens
)

// fakePool is an engine with one request of any length, which generates six blocks while its first
// round is pulled. It answers at once, so that only the migration is measured.
type fakePool struct {
	memory *transport.Memory
	ids    []uint32
	blocks []uint32
	length int // when a migration begins
	more   int // generated during the pull of the first round
	// froze is called before a freeze is answered, moved when the stream has migrated; either may
	// be nil.
	froze, moved func()
}

// newFakePool returns a fakePool whose blocks have the given size.
func newFakePool(tb testing.TB, bytes int64) *fakePool {
	size := int(benchBlocks * bytes)
	fd := testkit.Must(unix.MemfdCreate("pool", unix.MFD_CLOEXEC))
	file := os.NewFile(uintptr(fd), "pool")
	testkit.NoError(tb, file.Truncate(int64(size)))
	b := testkit.Must(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	s := &fakePool{memory: &transport.Memory{Layout: transport.Layout{Blocks: benchBlocks, Regions: []transport.Region{{Stride: bytes, Bytes: bytes}}}, Bytes: b, File: file,
		Unmap: func() { unix.Munmap(b); file.Close() }}}
	for i := range uint32(benchBlocks) {
		s.blocks = append(s.blocks, (i*7919)%benchBlocks) // scattered
	}
	for i := range uint32(benchBlocks * benchTokens) {
		s.ids = append(s.ids, i*31)
	}
	return s
}

func (s *fakePool) Description() (kvport.Description, bool) {
	return kvport.Description{BlockTokens: benchTokens, Fingerprint: 1}, true
}
func (s *fakePool) Memory() (*transport.Memory, bool) { return s.memory, true }
func (s *fakePool) Table(_ context.Context, _ string, from int) (kvport.Table, error) {
	if from > 0 {
		s.more = 6 * benchTokens
	}
	return s.table(from), nil
}
func (s *fakePool) table(from int) kvport.Table {
	n := s.length + s.more
	return kvport.Table{Computed: n - 1, Length: n, IDs: s.ids[from:n], BlockTokens: benchTokens, Blocks: s.blocks[from/benchTokens : (n-1+benchTokens-1)/benchTokens]}
}
func (s *fakePool) Freeze(_ context.Context, _ string, from int) (kvport.Table, error) {
	if s.froze != nil {
		s.froze()
	}
	return s.table(from), nil
}
func (*fakePool) Thaw(context.Context, string) error { return nil }
func (*fakePool) Drop(context.Context, string) error { return nil }
func (s *fakePool) Reserve(_ context.Context, _ string, tokens int) ([]uint32, error) {
	return s.blocks[:(tokens+benchTokens-1)/benchTokens], nil
}
func (*fakePool) MarkFilled(context.Context, string, int, []uint32, int) error { return nil }
func (*fakePool) NextToken(context.Context) (time.Duration, error)             { return 0, nil }
func (*fakePool) AbandonSession(error)                                         {}
func (*fakePool) Release(context.Context, string) error                        { return nil }

// fakeFrontEnd is a front end whose streams continue at the target as soon as the target adopts
// them.
type fakeFrontEnd struct {
	slab   *fakePool
	target *move.Executor
	self   policies.ReplicaID
}

func (d *fakeFrontEnd) Migrate(_ context.Context, m frontend.Migration) (frontend.MigrationResult, error) {
	if _, err := d.target.Adopt(m.Reservation, m.Stream, d.self); err != nil {
		return frontend.MigrationResult{Epoch: m.Epoch + 2}, err
	}
	if d.slab.moved != nil {
		d.slab.moved()
	}
	return frontend.MigrationResult{Epoch: m.Epoch + 1}, nil
}
func (*fakeFrontEnd) Holder(string) (frontend.Holder, bool) { return frontend.Holder{}, false }
func (d *fakeFrontEnd) LocalLegs() []frontend.LocalLeg {
	return []frontend.LocalLeg{{Request: policies.Request{ID: "q", Input: policies.Tokens(d.slab.length)}, Name: "q#1", FrontEnd: "s", Epoch: 1}}
}
func (*fakeFrontEnd) AdvanceEpoch(string, policies.Epoch) {}
func (*fakeFrontEnd) FreezeLeg(string, bool)              {}
func (*fakeFrontEnd) KVConnector() (engineinfo.KVConnector, bool) {
	return engineinfo.KVConnector{}, false
}

// directNetwork encodes envelopes and delivers them to one executor.
type directNetwork struct{ to func() *move.Executor }

func (p directNetwork) Send(_ policies.ReplicaID, e *api.Envelope) {
	from := policies.ReplicaID("s")
	b := testkit.Must(proto.Marshal(e.GetTransfer()))
	var t api.Transfer
	if err := proto.Unmarshal(b, &t); err != nil {
		panic(err)
	}
	if k := move.Kind(t.Kind); k == move.Open || k == move.Pulled || k == move.Pulling || k == move.Ready {
		from = "d"
	}
	p.to().Receive(from, &t)
}

// pairBench is two executors and the transports between them.
type pairBench struct {
	source *fakePool
	movers [2]*move.Executor // target, source
	events [2]chan bidask.EventKind
	ended  chan move.Migration
	number uint64
}

// newPairBench runs two executors until the test ends.
func newPairBench(tb testing.TB, source, target *fakePool, carrier func(name string, s *fakePool) (transport.Transport, error)) *pairBench {
	tb.Helper()
	l := &pairBench{source: source, ended: make(chan move.Migration, 1)}
	ctx, cancel := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	tb.Cleanup(wg.Wait)
	tb.Cleanup(cancel)
	for i, s := range []*fakePool{target, source} {
		self := policies.ReplicaID([]string{"d", "s"}[i])
		t, err := carrier(string(self), s)
		testkit.NoError(tb, err)
		l.events[i] = make(chan bidask.EventKind, 4)
		front := &fakeFrontEnd{slab: s, target: l.movers[0], self: self}
		paths := transport.NewPaths(transport.PathsConfig{Self: self, Transports: []transport.Transport{t}, Pool: s})
		c := move.Config{Self: self, Engine: s, FrontEnd: func() move.FrontEnd { return front },
			Send:  directNetwork{func() *move.Executor { return l.movers[1-i] }}.Send,
			Paths: paths, Address: func(policies.ReplicaID) string { return "" }, Notify: func(ev bidask.Event) { l.events[i] <- ev.Kind }}
		if self == "s" {
			c.OnEnd = func(m move.Migration) { l.ended <- m }
		}
		if l.movers[i], err = move.New(c); err != nil {
			tb.Fatal(err)
		}
		wg.Go(func() { t.Run(ctx) })
		wg.Go(func() { paths.Run(ctx) })
	}
	for _, m := range l.movers {
		wg.Go(func() { m.Run(ctx) })
	}
	time.Sleep(50 * time.Millisecond) // until the transports serve
	return l
}

// move migrates the source's request.
func (l *pairBench) move(tb testing.TB) move.Migration {
	tb.Helper()
	l.number++
	l.source.more = 0
	a := bidask.Action{Deal: bidask.Deal{Seller: "s", Number: l.number}, Migration: policies.Migration{Request: "q", Length: policies.Tokens(l.source.length)}}
	do := func(i int, k bidask.ActionKind, peer policies.ReplicaID) {
		a.Kind, a.Peer = k, peer
		l.movers[i].Execute(a)
	}
	do(0, bidask.Reserve, "s")
	<-l.events[0]
	do(1, bidask.Export, "d")
	do(0, bidask.Import, "s")
	m := <-l.ended
	if s, d := <-l.events[1], <-l.events[0]; s != bidask.TransferDone || d != bidask.TransferDone {
		tb.Fatalf("%v, %v: %+v", s, d, m)
	}
	return m
}

// carriers returns the transports within one machine.
func carriers(tb testing.TB) map[string]func(name string, s *fakePool) (transport.Transport, error) {
	dir := testkit.Must(os.MkdirTemp("", "shm")) // a short path, because of socket names
	tb.Cleanup(func() { os.RemoveAll(dir) })
	var network transporttest.Network
	return map[string]func(name string, s *fakePool) (transport.Transport, error){
		"memory": func(name string, s *fakePool) (transport.Transport, error) {
			return transporttest.NewMemory(transporttest.MemoryConfig{Network: &network, Name: name, Pool: s})
		},
		"shm": func(_ string, s *fakePool) (transport.Transport, error) {
			return shm.New(shm.Config{Dir: dir, Pool: s})
		},
	}
}

// BenchmarkStall measures the time from a request's freeze to its front end's report that the
// target continues it, all in one process: manifest, pull of the last blocks, verification, switch.
// The time must not grow with the request, except for the effect of a long request's rounds on the
// CPU caches: therefore 256 tokens are also measured with the same amount of memory touched before
// their freeze.
func BenchmarkStall(b *testing.B) {
	source, target := newFakePool(b, benchBytes), newFakePool(b, benchBytes)
	defer source.memory.Close()
	defer target.memory.Close()
	carriers := carriers(b)
	other := make([]byte, longest/benchTokens*benchBytes)
	for _, carrier := range []string{"memory", "shm"} {
		for _, x := range []struct {
			name   string
			length int
			cold   bool
		}{{"256", 256, false}, {"256-cold", 256, true}, {"131072", longest, false}} {
			b.Run(carrier+"/"+x.name, func(b *testing.B) {
				source.length, target.length = x.length+9, x.length+9 // so that the last block is half full
				source.froze = nil
				if x.cold {
					source.froze = func() { touch(other) }
				}
				l := newPairBench(b, source, target, carriers[carrier])
				var stalls []time.Duration
				for b.Loop() {
					stalls = append(stalls, l.move(b).Stall)
				}
				slices.Sort(stalls)
				b.ReportMetric(float64(stalls[len(stalls)/2])/1e3, "µs-p50")
				b.ReportMetric(float64(stalls[len(stalls)*99/100])/1e3, "µs-p99")
			})
		}
	}
}

// touch writes to memory, which fills the CPU caches.
func touch(b []byte) {
	for i := 0; i < len(b); i += 64 {
		b[i]++
	}
}

// TestStallAllocates checks that between the freeze and the front end's report neither side copies
// the request's ids or its block table. A copy of the longer request's ids alone takes 512 KiB.
func TestStallAllocates(t *testing.T) {
	const bytes, tries = 64, 5 // the best try counts, because the runtime allocates, too
	source, target := newFakePool(t, bytes), newFakePool(t, bytes)
	t.Cleanup(source.memory.Close)
	t.Cleanup(target.memory.Close)
	var before, after uint64
	source.froze = func() { before = allocated() }
	source.moved = func() { after = allocated() }
	l := newPairBench(t, source, target, carriers(t)["shm"])
	least := map[int]uint64{}
	for _, length := range []int{256, longest} {
		source.length, target.length = length+9, length+9
		for i := range tries {
			l.move(t)
			if n := after - before; i == 0 || n < least[length] {
				least[length] = n
			}
		}
	}
	t.Logf("bytes allocated while a request stands still: %d of 256 tokens, %d of 128Ki", least[256], least[longest])
	if least[longest] > least[256]+64<<10 {
		t.Errorf("%d bytes are allocated while a request of 128Ki tokens stands still, %d for one of 256", least[longest], least[256])
	}
}

// allocated returns how many bytes the process has allocated so far.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

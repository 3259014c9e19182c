package mover_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/mover"
	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/memory"
	"github.com/cascadeinfer/cascade/migrator/transport/shm"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// A large pool of large blocks, as a real engine's: 16 tokens in 32 KiB, scaled
// down from 1.75 MiB so that two of them fit into a small machine.
const (
	benchTokens = 16
	benchBlocks = 9000
	benchBytes  = 32 << 10
)

// slab is an engine with one request of any length, which generates six blocks
// while its first round is pulled. It answers in no time, so that what is
// measured is the move.
type slab struct {
	memory *transport.Memory
	ids    []uint32
	blocks []uint32
	length int // when a move begins
	more   int // generated since: while the first round was pulled
}

func newSlab(tb testing.TB) *slab {
	size := benchBlocks * benchBytes
	fd, err := unix.MemfdCreate("pool", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "pool")
	if err := file.Truncate(int64(size)); err != nil {
		tb.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	s := &slab{memory: &transport.Memory{Layout: transport.Layout{Blocks: benchBlocks, Regions: []transport.Region{{Stride: benchBytes, Bytes: benchBytes}}}, Bytes: b, File: file,
		Unmap: func() { unix.Munmap(b); file.Close() }}}
	for i := range uint32(benchBlocks) {
		s.blocks = append(s.blocks, (i*7919)%benchBlocks) // scattered
	}
	for i := range uint32(benchBlocks * benchTokens) {
		s.ids = append(s.ids, i*31)
	}
	return s
}

func (s *slab) Description() (blocks.Description, bool) {
	return blocks.Description{BlockTokens: benchTokens, Layout: s.memory.Layout, Fingerprint: 1}, true
}
func (s *slab) Memory() (*transport.Memory, bool) { return s.memory, true }
func (s *slab) Table(_ context.Context, _ string, from int) (blocks.Table, error) {
	if from > 0 {
		s.more = 6 * benchTokens
	}
	return s.table(from), nil
}
func (s *slab) table(from int) blocks.Table {
	n := s.length + s.more
	return blocks.Table{Computed: n - 1, Length: n, IDs: s.ids[from:n], FirstBlock: from / benchTokens, Blocks: s.blocks[from/benchTokens : (n-1+benchTokens-1)/benchTokens]}
}
func (s *slab) Freeze(_ context.Context, _ string, from int) (blocks.Table, error) {
	return s.table(from), nil
}
func (*slab) Thaw(context.Context, string) error { return nil }
func (*slab) Drop(context.Context, string) error { return nil }
func (s *slab) Reserve(_ context.Context, _ string, tokens int) ([]uint32, error) {
	return s.blocks[:(tokens+benchTokens-1)/benchTokens], nil
}
func (*slab) Filled(context.Context, string, int, []uint32, int) error { return nil }
func (*slab) Release(context.Context, string) error                    { return nil }

// desk is a front whose streams go on at the target as soon as that adopts.
type desk struct {
	slab   *slab
	target *mover.Mover
	self   policies.ReplicaID
}

func (d *desk) Move(_ context.Context, m stream.Move) (policies.Epoch, error) {
	if _, err := d.target.Adopt(m.ID, m.Stream, d.self); err != nil {
		return m.Epoch + 2, err
	}
	return m.Epoch + 1, nil
}
func (*desk) Holder(string) (stream.Holding, bool) { return stream.Holding{}, false }
func (d *desk) Residents() []stream.Resident {
	return []stream.Resident{{Request: policies.Request{ID: "q", Input: policies.Tokens(d.slab.length)}, Leg: "q#1", Front: "s", Epoch: 1}}
}
func (*desk) Advance(string, policies.Epoch) {}

// post carries envelopes to one mover, through their bytes.
type post struct{ to func() *mover.Mover }

func (p post) Send(_ policies.ReplicaID, e *api.Envelope) {
	from := policies.ReplicaID("s")
	b, err := proto.Marshal(e.GetTransfer())
	if err != nil {
		panic(err)
	}
	var t api.Transfer
	if err := proto.Unmarshal(b, &t); err != nil {
		panic(err)
	}
	if k := transfer.Kind(t.Kind); k == transfer.Open || k == transfer.Pulled || k == transfer.Pulling || k == transfer.Ready {
		from = "d"
	}
	p.to().Receive(from, &t)
}

// BenchmarkStall is the time from a request's freeze to its front's word that
// the target goes on with it, all in one process: manifest, pull of the last
// blocks, verification, hand-over. It must not grow with the request.
func BenchmarkStall(b *testing.B) {
	source, target := newSlab(b), newSlab(b)
	defer source.memory.Close()
	defer target.memory.Close()
	var network memory.Network
	dir, err := os.MkdirTemp("", "shm") // a short path, for sockets
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	carriers := map[string]func(name string, s *slab) (transport.Transport, error){
		"memory": func(name string, s *slab) (transport.Transport, error) {
			return memory.New(memory.Config{Network: &network, Name: name, Pool: s})
		},
		"shm": func(name string, s *slab) (transport.Transport, error) {
			return shm.New(shm.Config{Dir: dir, Pool: s})
		},
	}
	for _, carrier := range []string{"memory", "shm"} {
		for _, length := range []int{256, 128 << 10} {
			b.Run(carrier+"/"+strconv.Itoa(length), func(b *testing.B) {
				length := length + 9 // the last block is half full
				source.length, target.length = length, length
				ctx, cancel := context.WithCancel(b.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				ended := make(chan mover.Move, 1)
				var movers [2]*mover.Mover
				told := [2]chan bidask.EventKind{make(chan bidask.EventKind, 4), make(chan bidask.EventKind, 4)}
				for i, s := range []*slab{target, source} {
					self := policies.ReplicaID([]string{"d", "s"}[i])
					t, err := carriers[carrier](string(self), s)
					if err != nil {
						b.Fatal(err)
					}
					c := mover.Config{Self: self, Engine: s, Front: &desk{slab: s, target: movers[0], self: self}, Network: post{func() *mover.Mover { return movers[1-i] }},
						Transports: []transport.Transport{t}, Address: func(policies.ReplicaID) string { return "" }, Tell: func(ev bidask.Event) { told[i] <- ev.Kind }}
					if self == "s" {
						c.Ended = func(m mover.Move) { ended <- m }
					}
					if movers[i], err = mover.New(c); err != nil {
						b.Fatal(err)
					}
					wg.Go(func() { t.Run(ctx) })
				}
				for _, m := range movers {
					wg.Go(func() { m.Run(ctx) })
				}
				time.Sleep(50 * time.Millisecond) // until the transports serve
				var stalls []time.Duration
				number := uint64(0)
				for b.Loop() {
					number++
					source.more = 0
					a := bidask.Action{Deal: bidask.Deal{Seller: "s", Number: number}, Handover: policies.Handover{Request: "q", Length: policies.Tokens(length)}}
					do := func(i int, k bidask.ActionKind, peer policies.ReplicaID) {
						a.Kind, a.Peer = k, peer
						movers[i].Do(a)
					}
					do(0, bidask.Reserve, "s")
					<-told[0]
					do(1, bidask.Export, "d")
					do(0, bidask.Import, "s")
					m := <-ended
					if s, d := <-told[1], <-told[0]; s != bidask.Moved || d != bidask.Moved {
						b.Fatalf("%v, %v: %+v", s, d, m)
					}
					stalls = append(stalls, m.Stall)
				}
				slices.Sort(stalls)
				b.ReportMetric(float64(stalls[len(stalls)/2])/1e3, "µs-p50")
				b.ReportMetric(float64(stalls[len(stalls)*99/100])/1e3, "µs-p99")
			})
		}
	}
}

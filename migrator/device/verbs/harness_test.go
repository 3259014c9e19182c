package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// patience bounds waits for what should end by itself.
const patience = 30 * time.Second

// harness is two connected queue pairs with memory.
type harness struct {
	lib           *verbs.Library
	device        *verbs.Device
	queues        [2]*verbs.CompletionQueue
	pairs         [2]*verbs.QueuePair
	memory        [2][]byte
	regions       [2]*verbs.MemoryRegion
	keep          runtime.Pinner
	completions   []verbs.Completion
	port          verbs.Port
	gid           verbs.GID
	dmabuf        *os.File
	dmabufRegion  *verbs.MemoryRegion
	withoutDMABuf bool
}

const rigBytes = 1 << 16

// newHarness returns a harness on the first device; the test closes it.
func newHarness(t testing.TB, l *verbs.Library) *harness {
	t.Helper()
	r := &harness{lib: l}
	testkit.NoError(t, r.setUp(""))
	return r
}

// setUp makes everything, and returns the first error.
func (r *harness) setUp(name string) (err error) {
	r.completions = make([]verbs.Completion, 8)
	names, err := r.lib.Devices()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no device")
	}
	if name == "" {
		name = names[0]
	}
	if r.device, err = r.lib.OpenDevice(name); err != nil {
		return err
	}
	if r.port, err = r.device.Port(1); err != nil {
		return err
	}
	for i := range min(r.port.GIDs, 3) {
		g, err := r.device.GID(1, uint8(i))
		if errors.Is(err, syscall.ENODATA) {
			continue // an entry that is not set
		}
		if err != nil {
			return err
		}
		if g.Address != [16]byte{} {
			r.gid = g
		}
	}
	for i := range r.pairs {
		r.memory[i] = make([]byte, rigBytes)
		r.keep.Pin(&r.memory[i][0])
		access := verbs.LocalWrite | verbs.RemoteRead
		if r.regions[i], err = r.device.Register(uintptr(unsafe.Pointer(&r.memory[i][0])), rigBytes, access); err != nil {
			return err
		}
		if r.queues[i], err = r.device.NewCompletionQueue(64); err != nil {
			return err
		}
		if r.pairs[i], err = r.device.NewQueuePair(r.queues[i], 64, 2); err != nil {
			return err
		}
	}
	if !r.withoutDMABuf {
		if r.dmabuf, err = os.CreateTemp("", "dmabuf"); err != nil {
			return err
		}
		os.Remove(r.dmabuf.Name())
		if err := r.dmabuf.Truncate(rigBytes); err != nil {
			return err
		}
		if r.dmabufRegion, err = r.device.RegisterDMABuf(int(r.dmabuf.Fd()), 4096, 8192, 1<<40, verbs.LocalWrite|verbs.RemoteRead); err != nil {
			return err
		}
	}
	for i, p := range r.pairs {
		path := verbs.Path{
			GID: r.gid.Address, Pair: r.pairs[1-i].Number, PeerPSN: uint32(100 - i), LocalPSN: uint32(99 + i), LID: r.port.LID, Global: 1, GIDIndex: r.gid.Index,
			Port: 1, MTU: min(r.port.MTU, 3), Reads: 4, PeerReads: 4, Timeout: 11, Retries: 6, Hops: 64,
		}
		if err := p.Init(1, verbs.RemoteRead); err != nil {
			return err
		}
		if err := p.ReadyToReceive(&path); err != nil {
			return err
		}
		if err := p.ReadyToSend(&path); err != nil {
			return err
		}
	}
	return nil
}

// close closes everything, and returns the first error.
func (r *harness) close() (err error) {
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	for i := range r.pairs {
		if r.pairs[i] != nil {
			keep(r.pairs[i].Close())
		}
		if r.queues[i] != nil {
			keep(r.queues[i].Close())
		}
		if r.regions[i] != nil {
			keep(r.regions[i].Close())
		}
	}
	if r.dmabufRegion != nil {
		keep(r.dmabufRegion.Close())
	}
	if r.dmabuf != nil {
		r.dmabuf.Close()
	}
	if r.device != nil {
		keep(r.device.Close())
	}
	r.keep.Unpin()
	return err
}

// transfer reads bytes of the peer by one request and waits for it.
func (r *harness) transfer(length uint32) error {
	w := []verbs.Work{{
		ID: 7, Local: r.regions[0].Base + 100, LocalKey: r.regions[0].LocalKey, Remote: r.regions[1].Base + 200, RemoteKey: r.regions[1].RemoteKey,
		Length: length, Flags: verbs.Signaled,
	}}
	if _, err := r.pairs[0].Post(w); err != nil {
		return err
	}
	return r.wait(7)
}

// wait waits for a completion, which must have this ID.
func (r *harness) wait(id uint64) error {
	r.queues[0].SetDeadline(time.Now().Add(patience))
	n, err := r.queues[0].Wait(r.completions)
	if err != nil {
		return err
	}
	if n != 1 || r.completions[0].ID != id {
		return fmt.Errorf("%d completions, the first of %d", n, r.completions[0].ID)
	}
	return r.queues[0].CompletionErr(r.completions[0])
}

// work reads once, and compares the bytes.
func (r *harness) work() error {
	for i, b := range r.memory {
		for k := range b {
			b[k] = byte(k*7 + i)
		}
	}
	if err := r.transfer(5000); err != nil {
		return err
	}
	if !bytes.Equal(r.memory[0][100:5100], r.memory[1][200:5200]) {
		return errors.New("a READ brought other bytes")
	}
	return nil
}

// failRequest makes a request that must not reach the peer, and returns its error: the
// pair cannot be used afterwards.
func (r *harness) failRequest() error {
	if err := r.pairs[1].MoveToError(); err != nil {
		return err
	}
	err := r.transfer(10)
	var failed *verbs.CompletionError
	if !errors.As(err, &failed) || failed.Status != verbs.RetryExceeded && failed.Status != verbs.RemoteAccess && failed.Status != 14 {
		return fmt.Errorf("a READ from a pair that has failed: %w", err)
	}
	return nil
}

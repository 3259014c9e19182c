// Package gpuset manages the GPUs that the engines and migrators of this process use: an emulated
// engine keeps its KV pool on one, and a migrator attaches the pool of its engine. It also watches
// the health of the GPUs.
//
// New returns a Set; PoolAllocator and Attach open GPUs on demand; Run watches their health. The
// package loads the driver only when it needs a GPU, so that processes without GPUs start equally
// fast on any host. The package copies no blocks.
package gpuset

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/migrator/device"
	driver "github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// The locations of an emulated engine's KV pool.
const (
	Host = "host" // shared host memory
	CUDA = "cuda" // memory of a GPU
)

// Config configures a Set. The zero value uses the host's libraries.
type Config struct {
	// CUDA and NVML are sonames or paths; "" means the host's driver.
	CUDA, NVML string
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Set is the GPUs of one process. It is safe for concurrent use.
type Set struct {
	config   Config
	interval time.Duration // between two readings of NVML; shorter in tests
	opened   chan struct{} // closed when a GPU was opened

	reading sync.Mutex // held during a reading of NVML
	indices []string   // PCI addresses by NVML's index, as of the last reading; guarded by reading

	mu       sync.Mutex
	driver   *driver.Driver
	gpus     map[int]*cuda.GPU                   // by ordinal
	trackers map[string]*inventory.HealthTracker // of all GPUs of the host, by PCI address
	closed   bool
}

// New returns a Set of the GPUs that the driver lists. It opens none of them.
func New(c Config) *Set {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Set{config: c, interval: readInterval, opened: make(chan struct{}), gpus: make(map[int]*cuda.GPU), trackers: make(map[string]*inventory.HealthTracker)}
}

// Open opens a GPU by its index, unless it is open. If this process cannot use GPUs, the error
// wraps device.ErrNoLibrary or device.ErrNoCgo and names what is missing.
func (g *Set) Open(index int) (*cuda.GPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.openGPULocked(index)
}

func (g *Set) openGPULocked(index int) (*cuda.GPU, error) {
	if gpu := g.gpus[index]; gpu != nil {
		return gpu, nil
	}
	if err := g.loadDriverLocked(); err != nil {
		return nil, err
	}
	n, err := g.driver.Count()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= n {
		return nil, fmt.Errorf("gpu %d does not exist: the driver lists %d GPUs for this process", index, n)
	}
	gpu, err := cuda.NewGPU(cuda.GPUConfig{Driver: g.driver, Ordinal: index})
	if err != nil {
		return nil, err
	}
	if g.gpus[index] = gpu; len(g.gpus) == 1 {
		close(g.opened)
	}
	g.applyHealthLocked(gpu)
	return gpu, nil
}

// loadDriverLocked loads the driver once.
func (g *Set) loadDriverLocked() (err error) {
	if g.closed {
		return errors.New("the GPUs are closed")
	}
	if g.driver != nil {
		return nil
	}
	// Number GPUs like nvidia-smi, not by speed. Load the few kernels before the first pull needs
	// them.
	for name, value := range map[string]string{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MODULE_LOADING": "EAGER"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	g.driver, err = driver.Open(g.config.CUDA)
	switch {
	case errors.Is(err, device.ErrNoCgo):
		return fmt.Errorf("%w: build cascade with CGO_ENABLED=1 to use GPUs", err)
	case errors.Is(err, device.ErrNoLibrary):
		return fmt.Errorf("%w: install an NVIDIA driver, or add its libraries to this container", err)
	}
	return err
}

// openByUUID opens the GPU with a UUID.
func (g *Set) openByUUID(uuid [16]byte) (*cuda.GPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.loadDriverLocked(); err != nil {
		return nil, err
	}
	n, err := g.driver.Count()
	if err != nil {
		return nil, err
	}
	var unread error
	for i := range n {
		info, err := g.driver.Device(i)
		if err == nil && info.UUID == uuid {
			return g.openGPULocked(i)
		}
		unread = errors.Join(unread, err) // another GPU may have failed
	}
	if unread != nil {
		return nil, fmt.Errorf("the engine's GPU %s is not one of those that the driver describes: %w", hex.EncodeToString(uuid[:]), unread)
	}
	return nil, fmt.Errorf("the engine's GPU %s is not one of the %d GPUs that the driver lists for this process", hex.EncodeToString(uuid[:]), n)
}

// Attach attaches an engine's pool by its handle. It implements Device of
// migrator/kvport.
func (g *Set) Attach(handle []byte, f *os.File, l transport.Layout) (m *transport.Memory, err error) {
	defer func() {
		if err != nil && f != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	h, err := cuda.ParseHandle(handle, l.MinSize())
	if err != nil {
		return nil, err
	}
	gpu, err := g.openByUUID(h.GPU)
	if err != nil {
		return nil, err
	}
	return cuda.Attach(gpu, h, f, l)
}

// PoolAllocator returns the function that allocates the pool of an emulated engine. It returns nil
// for Host or "", and for CUDA a function that allocates on the GPU with that index; a nil index
// means the first GPU. It opens the GPU, so that errors appear early.
func (g *Set) PoolAllocator(name string, index *int) (func(bytes int64) (kv.Memory, error), error) {
	switch {
	case name == "" || name == Host:
		return nil, nil
	case name != CUDA:
		return nil, fmt.Errorf("device %q: must be %q or %q", name, Host, CUDA)
	case g == nil:
		return nil, errors.New("device cuda: no GPUs are configured")
	}
	first := 0
	if index == nil {
		index = &first
	}
	gpu, err := g.Open(*index)
	if err != nil {
		return nil, fmt.Errorf("device cuda: %w", err)
	}
	return func(bytes int64) (kv.Memory, error) { return allocatePool(gpu, bytes) }, nil
}

// allocatePool allocates a pool on a GPU.
func allocatePool(gpu *cuda.GPU, bytes int64) (kv.Memory, error) {
	kind := cuda.IPC
	if gpu.Device().VMM { // a VMM pool can also be shared within one process
		kind = cuda.VMM
	}
	m, err := cuda.Allocate(gpu, kind, transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: bytes, Bytes: bytes}}})
	if err != nil {
		return nil, err
	}
	return pool{m, m.Device.(*cuda.Memory)}, nil
}

// pool adapts device memory to the engine's interface.
type pool struct {
	memory *transport.Memory
	*cuda.Memory
}

// Share implements kv.Memory.
func (p pool) Share() ([]byte, *os.File, error) {
	f, err := p.Descriptor()
	return p.Handle().Append(nil), f, err
}

// Close implements kv.Memory.
func (p pool) Close() error {
	p.memory.Close()
	return nil
}

// Close closes all GPUs. They must not be in use any more.
func (g *Set) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	var err error
	for i, gpu := range g.gpus {
		delete(g.gpus, i)
		err = errors.Join(err, gpu.Close())
	}
	return err
}

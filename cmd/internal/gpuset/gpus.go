// Package gpuset joins engines and migrators of this process to the machine's GPUs: an
// emulated engine keeps its KV pool on one, and a migrator reaches its engine's, while
// somebody watches that the GPU is well.
//
// It opens the driver when somebody needs a GPU, and not before, so that whoever needs
// none starts as fast on any machine. It moves nothing.
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
	"github.com/cascadeinfer/cascade/migrator/device/health"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// Where an emulated engine keeps its KV pool.
const (
	Host = "host" // shared memory of the machine
	CUDA = "cuda" // memory of a GPU
)

// Config says by which libraries GPUs are reached. The zero value is the machine's.
type Config struct {
	// CUDA and NVML are sonames or paths; "" is the machine's driver.
	CUDA, NVML string
	// Groups and Engines are cuda.GPUConfig's.
	Groups  int
	Engines bool
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

// Set are those of one process. It is safe for concurrent use.
type Set struct {
	config   Config
	interval time.Duration // between two readings of NVML; tests are faster
	opened   chan struct{} // closed when a GPU was opened

	reading sync.Mutex // held by one reading of NVML
	indices []string   // PCI addresses by NVML's index, as last read; guarded by reading

	mu       sync.Mutex
	driver   *driver.Driver
	gpus     map[int]*cuda.GPU          // by ordinal
	trackers map[string]*health.Tracker // of all GPUs of the machine, by PCI address
	closed   bool
}

// New returns the GPUs that the driver shows. Nothing is opened yet.
func New(c Config) *Set {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Set{config: c, interval: readInterval, opened: make(chan struct{}), gpus: make(map[int]*cuda.GPU), trackers: make(map[string]*health.Tracker)}
}

// Open opens a Open by its index, or returns it. Its error wraps device.ErrNoLibrary or
// device.ErrNoCgo where no Open can be there, and says what is missing.
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
		return nil, fmt.Errorf("there is no gpu %d: the driver shows %d to this process", index, n)
	}
	gpu, err := cuda.NewGPU(cuda.GPUConfig{Driver: g.driver, Ordinal: index, Groups: g.config.Groups, CopyEngines: g.config.Engines})
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
	// Indices are those of nvidia-smi, and not by speed; and the few kernels are there
	// before a move needs them.
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
		return fmt.Errorf("%w: no NVIDIA driver is installed here, or its libraries are not in this container", err)
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
	for i := range n {
		gpu, err := g.openGPULocked(i)
		if err != nil {
			return nil, err
		}
		if gpu.Device().UUID == uuid {
			return gpu, nil
		}
	}
	return nil, fmt.Errorf("the engine's GPU %s is not among the %d that this process sees", hex.EncodeToString(uuid[:]), n)
}

// Attach takes over an engine's pool by its handle. It is migrator/blocks' Device.
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

// PoolAllocator is the emulator's Device of an engine that keeps its pool there: Host or "",
// or CUDA, on the GPU of that index, nil for the first one. It opens the GPU, so that
// what is missing is known at once.
func (g *Set) PoolAllocator(name string, index *int) (func(bytes int64) (kv.Memory, error), error) {
	switch {
	case name == "" || name == Host:
		return nil, nil
	case name != CUDA:
		return nil, fmt.Errorf("device %q: there are %q and %q", name, Host, CUDA)
	case g == nil:
		return nil, errors.New("device cuda: there are no GPUs to use")
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

// allocatePool makes a pool on a GPU.
func allocatePool(gpu *cuda.GPU, bytes int64) (kv.Memory, error) {
	kind := cuda.IPC
	if gpu.Device().VMM { // which one process can share with itself, too
		kind = cuda.VMM
	}
	m, err := cuda.Allocate(gpu, kind, transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: bytes, Bytes: bytes}}})
	if err != nil {
		return nil, err
	}
	return pool{m, m.Device.(*cuda.Memory)}, nil
}

// pool is a memory as an engine has it.
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

// Close ends all that was opened. Nothing of it is in use any more.
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

//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// shared is what all Libraries share, because it is the process's: the symbols
// of go-nvml are bound to the first library that is loaded, for good, and it
// keeps which versions of them to call in variables of its own.
var shared struct {
	// Held for writing while a library is initialised or shut down, for reading
	// while it is called.
	sync.RWMutex
	path string
}

type state struct {
	api      nvml.Interface
	closing  bool           // guarded by process; nothing new begins
	closed   bool           // guarded by process
	watching sync.WaitGroup // Watches; they end once the Library is closing
}

// Open loads and initialises NVML. The error wraps device.ErrNoLibrary where
// there is none, or is ErrOther, a *device.SymbolError for a library that lacks
// what is needed, or a *CallError.
func Open(cfg Config) (*Library, error) {
	path := cfg.Library
	if path == "" {
		path = topology.NVML
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.path != "" && shared.path != path {
		return nil, fmt.Errorf("%s: %w, %s", path, ErrOtherLibrary, shared.path)
	}
	// go-nvml calls nvmlInit without looking whether it is there. Nor must the
	// library go while symbols are bound to it: this keeps it for good.
	found, err := device.Load(path)
	if err != nil {
		return nil, err
	}
	for _, s := range required {
		if _, err := found.Symbol(s); err != nil {
			return nil, err
		}
	}
	l := &Library{missing: make(map[string]bool)}
	for _, s := range optional {
		_, err := found.Symbol(s)
		l.missing[s] = err != nil
	}
	shared.path = path
	l.api = nvml.New(nvml.WithLibraryPath(path))
	if ret := l.api.Init(); ret != nvml.SUCCESS {
		return nil, &CallError{Call: "nvmlInit_v2", GPU: topology.Unknown, Code: int(ret)}
	}
	return l, nil
}

// Close ends what Watches run, and shuts NVML down for this Library. After an
// error it may be called again; else more calls do nothing.
func (l *Library) Close() error {
	shared.Lock()
	l.closing = true
	shared.Unlock()
	l.watching.Wait()
	shared.Lock()
	defer shared.Unlock()
	if l.closed {
		return nil
	}
	if ret := l.api.Shutdown(); ret != nvml.SUCCESS {
		return &CallError{Call: "nvmlShutdown", GPU: topology.Unknown, Code: int(ret)}
	}
	l.closed = true
	return nil
}

// Read asks for everything. What it returns beside an error is what the calls
// that did not fail have told; the error joins a *CallError for each that did.
func (l *Library) Read() (Inventory, error) {
	shared.RLock()
	defer shared.RUnlock()
	if l.closing {
		return Inventory{}, ErrClosed
	}
	r := reader{l: l, gpu: topology.Unknown}
	return r.readInventory(), errors.Join(r.errs...)
}

// ReadHealth asks for the GPUs' identities and health alone, in some ten calls for each. It
// is Read else.
func (l *Library) ReadHealth() ([]topology.GPU, error) {
	shared.RLock()
	defer shared.RUnlock()
	if l.closing {
		return nil, ErrClosed
	}
	r := reader{l: l, gpu: topology.Unknown}
	return r.readHealths(), errors.Join(r.errs...)
}

// pollMillis is how long Watch waits in the library before it looks at its context.
const pollMillis = 100 // milliseconds

// WatchXids calls see for every critical error (Xid) that the driver reports, until
// ctx ends, and returns nil then; ErrClosed when the Library is closed before. GPUs
// that offer no events are not watched. see must not close the Library.
func (l *Library) WatchXids(ctx context.Context, see func(gpu int, xid uint64)) error {
	w := watcher{l: l, gpus: make(map[nvml.Device]int)}
	if !w.register() {
		return ErrClosed
	}
	defer l.watching.Done()
	err := w.start()
	for err == nil && ctx.Err() == nil {
		err = w.poll(see)
	}
	return errors.Join(err, w.freeSet())
}

// watcher is one Watch at work.
type watcher struct {
	l    *Library
	set  nvml.EventSet
	gpus map[nvml.Device]int
}

// register has Close wait for this watcher; false when it is too late for that.
func (w *watcher) register() bool {
	shared.RLock()
	defer shared.RUnlock()
	if w.l.closing {
		return false
	}
	w.l.watching.Add(1)
	return true
}

func (w *watcher) start() error {
	shared.RLock()
	defer shared.RUnlock()
	for _, s := range [...]string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"} {
		if w.l.missing[s] {
			return &device.SymbolError{Library: shared.path, Symbol: s}
		}
	}
	r := reader{l: w.l, gpu: topology.Unknown}
	r.query("nvmlEventSetCreate", func() (ret nvml.Return) { w.set, ret = w.l.api.EventSetCreate(); return ret })
	if len(r.errs) > 0 {
		w.set = nil
		return errors.Join(r.errs...)
	}
	for i, d := range r.deviceHandles() {
		r.gpu = i
		if d != nil && r.query("nvmlDeviceRegisterEvents", func() nvml.Return { return d.RegisterEvents(nvml.EventTypeXidCriticalError, w.set) }) {
			w.gpus[d] = i
		}
	}
	return errors.Join(r.errs...)
}

// poll waits for an event, for a short while.
func (w *watcher) poll(see func(gpu int, xid uint64)) error {
	shared.RLock()
	defer shared.RUnlock()
	if w.l.closing {
		return ErrClosed
	}
	event, ret := w.set.Wait(pollMillis)
	switch ret {
	case nvml.ERROR_TIMEOUT:
		return nil
	case nvml.SUCCESS:
		if gpu, ours := w.gpus[event.Device]; ours && event.EventType == nvml.EventTypeXidCriticalError {
			see(gpu, event.EventData)
		}
		return nil
	}
	return &CallError{Call: "nvmlEventSetWait_v2", GPU: topology.Unknown, Code: int(ret)}
}

// freeSet frees the set.
func (w *watcher) freeSet() error {
	shared.RLock()
	defer shared.RUnlock()
	if w.set == nil {
		return nil
	}
	if ret := w.set.Free(); ret != nvml.SUCCESS {
		return &CallError{Call: "nvmlEventSetFree", GPU: topology.Unknown, Code: int(ret)}
	}
	return nil
}

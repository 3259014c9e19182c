//go:build cgo && linux

package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// shared is what all Libraries of the process share: go-nvml binds its symbols to the
// first library that is loaded, for good, and keeps which versions of them to call in
// package variables.
var shared struct {
	// Locked for writing while a library is initialised or shut down, for reading while
	// it is called.
	sync.RWMutex
	path string
}

type state struct {
	api      nvml.Interface
	closing  bool           // guarded by shared; no new call begins
	closed   bool           // guarded by shared
	watching sync.WaitGroup // WatchXids in progress; they end when the Library is closing
}

// OpenNVML loads and initialises NVML. The error wraps device.ErrNoLibrary if there is none,
// or ErrOtherLibrary, or is a *device.SymbolError for a library that lacks a required
// function, or a *CallError.
func OpenNVML(cfg NVMLConfig) (*NVMLLibrary, error) {
	path := cfg.Library
	if path == "" {
		path = topology.NVML
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.path != "" && shared.path != path {
		return nil, fmt.Errorf("%s: %w, %s", path, ErrOtherLibrary, shared.path)
	}
	// go-nvml calls nvmlInit without checking that it exists. The library must not be
	// unloaded while symbols are bound to it either: device.Load keeps it.
	found, err := device.Load(path)
	if err != nil {
		return nil, err
	}
	for _, s := range required {
		if _, err := found.Symbol(s); err != nil {
			return nil, err
		}
	}
	l := &NVMLLibrary{missing: make(map[string]bool)}
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

// Close ends all WatchXids and shuts NVML down for this Library. After an error it may be
// called again; otherwise further calls do nothing.
func (l *NVMLLibrary) Close() error {
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

// Read reads the inventory. After an error, the inventory has the results of the calls
// that succeeded; the error joins a *CallError for each call that failed.
func (l *NVMLLibrary) Read() (NVMLInventory, error) {
	shared.RLock()
	defer shared.RUnlock()
	if l.closing {
		return NVMLInventory{}, ErrClosed
	}
	r := reader{l: l, gpu: topology.Unknown}
	return r.readInventory(), errors.Join(r.errs...)
}

// ReadHealth reads only the identities and the health of the GPUs, with about ten calls
// per GPU. Otherwise it is like Read.
func (l *NVMLLibrary) ReadHealth() ([]topology.GPU, error) {
	shared.RLock()
	defer shared.RUnlock()
	if l.closing {
		return nil, ErrClosed
	}
	r := reader{l: l, gpu: topology.Unknown}
	gpus := r.readGPUs(r.deviceHandles(), r.readIdentity, r.readGPUHealth)
	return gpus, errors.Join(r.errs...)
}

// pollMillis is how long WatchXids waits in the library before it checks its context.
const pollMillis = 100 // milliseconds

// WatchXids calls handle for every critical error (Xid) that the driver reports, until
// ctx ends, and returns nil then, or ErrClosed when the Library is closed before. It
// ignores GPUs without events. handle must not close the Library.
func (l *NVMLLibrary) WatchXids(ctx context.Context, handle func(gpu int, xid uint64)) error {
	w := watcher{l: l, gpus: make(map[nvml.Device]int)}
	if !w.register() {
		return ErrClosed
	}
	defer l.watching.Done()
	err := w.start()
	for err == nil && ctx.Err() == nil {
		err = w.poll(handle)
	}
	return errors.Join(err, w.freeSet())
}

// watcher is one WatchXids in progress.
type watcher struct {
	l    *NVMLLibrary
	set  nvml.EventSet
	gpus map[nvml.Device]int
}

// register makes Close wait for this watcher. It reports false if the Library is closing.
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
	set, ret := w.l.api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return &CallError{Call: "nvmlEventSetCreate", GPU: topology.Unknown, Code: int(ret)}
	}
	w.set = set
	for i, d := range r.deviceHandles() {
		r.gpu = i
		if d != nil && r.query("nvmlDeviceRegisterEvents", func() nvml.Return { return d.RegisterEvents(nvml.EventTypeXidCriticalError, w.set) }) {
			w.gpus[d] = i
		}
	}
	return errors.Join(r.errs...)
}

// poll waits for an event, for at most pollMillis.
func (w *watcher) poll(handle func(gpu int, xid uint64)) error {
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
			handle(gpu, event.EventData)
		}
		return nil
	}
	return &CallError{Call: "nvmlEventSetWait_v2", GPU: topology.Unknown, Code: int(ret)}
}

// freeSet frees the set of events.
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

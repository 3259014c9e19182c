package inventory

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// NVMLLibrary is NVML, initialised. It is safe for concurrent use.
type NVMLLibrary struct {
	path      string
	functions device.Table

	mu       sync.RWMutex   // read-locked by each call but those of OpenNVML and Close
	closing  bool           // guarded by mu; no new call begins
	closed   bool           // guarded by mu
	watching sync.WaitGroup // WatchXids in progress; they end when the Library is closing
}

// tables has the functions of each library that was opened, by its path: a table is never freed.
var tables struct {
	sync.Mutex
	loaded map[string]device.Table
}

// OpenNVML loads and initialises NVML. The error wraps device.ErrNoLibrary or device.ErrNoCgo, or is a
// *device.SymbolError for a library that lacks a required function, or a *CallError.
func OpenNVML(cfg NVMLConfig) (*NVMLLibrary, error) {
	l := &NVMLLibrary{path: cmp.Or(cfg.Library, topology.NVML)}
	var err error
	if l.functions, err = loadFunctions(l.path); err != nil {
		return nil, err
	}
	if code := l.call(nvmlInit, &words{}, nil); code != codeSuccess {
		return nil, newCallError(nvmlInit, topology.Unknown, code)
	}
	return l, nil
}

// loadFunctions returns the functions of a library, which it loads once.
func loadFunctions(path string) (device.Table, error) {
	tables.Lock()
	defer tables.Unlock()
	if t, ok := tables.loaded[path]; ok {
		return t, nil
	}
	library, err := device.Load(path)
	if err != nil {
		return device.Table{}, err
	}
	var list []device.Function
	for c := range callCount {
		list = append(list, device.Function{Name: symbol(c), Optional: c >= requiredCalls})
	}
	t, err := library.Table(list)
	if err != nil {
		return device.Table{}, err
	}
	if tables.loaded == nil {
		tables.loaded = make(map[string]device.Table)
	}
	tables.loaded[path] = t
	return t, nil
}

// has reports whether the driver has a function; one may be too old for it.
func (l *NVMLLibrary) has(c call) bool { return l.functions.Has(int(c)) }

// call calls a function and returns its code.
func (l *NVMLLibrary) call(c call, v *words, buf unsafe.Pointer) int {
	if !l.has(c) {
		return codeNotSupported
	}
	return invoke(l.functions, c, v, buf)
}

// Close ends all WatchXids and shuts NVML down for this Library. After an error it may be
// called again; otherwise further calls do nothing.
func (l *NVMLLibrary) Close() error {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.watching.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if code := l.call(nvmlShutdown, &words{}, nil); code != codeSuccess {
		return newCallError(nvmlShutdown, topology.Unknown, code)
	}
	l.closed = true
	return nil
}

// Read reads the inventory. After an error, the inventory has the results of the calls
// that succeeded; the error joins a *CallError for each call that failed.
func (l *NVMLLibrary) Read() (NVMLInventory, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closing {
		return NVMLInventory{}, ErrClosed
	}
	r := reader{l: l, gpu: topology.Unknown}
	return r.readInventory(), errors.Join(r.errs...)
}

// ReadHealth reads only the identities and the health of the GPUs, with about ten calls
// per GPU. Otherwise it is like Read.
func (l *NVMLLibrary) ReadHealth() ([]topology.GPU, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
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
	w := watcher{l: l, gpus: make(map[uint64]int)}
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
	set  uint64         // handle of the set of events; 0 for none
	gpus map[uint64]int // by their handles
}

// register makes Close wait for this watcher. It reports false if the Library is closing.
func (w *watcher) register() bool {
	w.l.mu.RLock()
	defer w.l.mu.RUnlock()
	if w.l.closing {
		return false
	}
	w.l.watching.Add(1)
	return true
}

func (w *watcher) start() error {
	w.l.mu.RLock()
	defer w.l.mu.RUnlock()
	for _, c := range [...]call{nvmlEventSetCreate, nvmlDeviceRegisterEvents, nvmlEventSetWait, nvmlEventSetFree} {
		if !w.l.has(c) {
			return &device.SymbolError{Library: w.l.path, Symbol: symbol(c)}
		}
	}
	r := reader{l: w.l, gpu: topology.Unknown}
	var v words
	if code := w.l.call(nvmlEventSetCreate, &v, nil); code != codeSuccess {
		return newCallError(nvmlEventSetCreate, topology.Unknown, code)
	}
	w.set = v[0]
	for i, d := range r.deviceHandles() {
		r.gpu = i
		if d != 0 && r.query(nvmlDeviceRegisterEvents, &words{d, eventXid, w.set}, nil) {
			w.gpus[d] = i
		}
	}
	return errors.Join(r.errs...)
}

// poll waits for an event, for at most pollMillis.
func (w *watcher) poll(handle func(gpu int, xid uint64)) error {
	w.l.mu.RLock()
	defer w.l.mu.RUnlock()
	if w.l.closing {
		return ErrClosed
	}
	v := words{4: w.set, 5: pollMillis}
	switch code := w.l.call(nvmlEventSetWait, &v, nil); code {
	case codeTimeout:
		return nil
	case codeSuccess:
		if gpu, ours := w.gpus[v[0]]; ours && v[1] == eventXid {
			handle(gpu, v[2])
		}
		return nil
	default:
		return newCallError(nvmlEventSetWait, topology.Unknown, code)
	}
}

// freeSet frees the set of events.
func (w *watcher) freeSet() error {
	w.l.mu.RLock()
	defer w.l.mu.RUnlock()
	if w.set == 0 {
		return nil
	}
	if code := w.l.call(nvmlEventSetFree, &words{w.set}, nil); code != codeSuccess {
		return newCallError(nvmlEventSetFree, topology.Unknown, code)
	}
	return nil
}

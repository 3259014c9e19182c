package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/atomicfile"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// MaxModule is the largest module that is stored, in bytes.
const MaxModule = policyslots.MaxModule

// ErrNoModule says that a module is not stored.
var ErrNoModule = errors.New("no such module is stored")

// Modules stores the bytes of policy modules, by their hash. The plan object names
// them; control planes that share a plan object share the modules.
//
//   - Put stores bytes whose hash is sum, durably before it returns, and refuses
//     others. It may be called again for the same bytes.
//   - Get returns the bytes, or ErrNoModule (wrapped or not), or another error if the
//     stored bytes are damaged. The caller must not change them.
//   - Sweep removes the modules that are not in keep and were put before a time: a
//     push puts the bytes of a module before the plan object names it.
//
// All methods may be called by any goroutine at any time.
type Modules interface {
	Put(sum lifecycle.Digest, code []byte) error
	Get(sum lifecycle.Digest) ([]byte, error)
	Sweep(keep map[lifecycle.Digest]bool, before time.Time) error
}

// CheckModule returns an error for bytes that do not have the hash or the size of a
// module. It is for implementations of Modules.
func CheckModule(sum lifecycle.Digest, code []byte) error {
	switch {
	case len(code) == 0 || len(code) > MaxModule:
		return fmt.Errorf("module %x: %d bytes, want 1 to %d", sum[:6], len(code), MaxModule)
	case sha256.Sum256(code) != sum:
		return fmt.Errorf("module %x: the bytes have another hash", sum[:6])
	}
	return nil
}

// MemoryModules are Modules in memory, for a control plane that shares no store. The
// zero value is empty and ready.
type MemoryModules struct {
	mu  sync.Mutex
	all map[lifecycle.Digest]memoryModule
}

type memoryModule struct {
	code []byte
	put  time.Time
}

var _ Modules = (*MemoryModules)(nil)

// Put implements Modules.
func (m *MemoryModules) Put(sum lifecycle.Digest, code []byte) error {
	if err := CheckModule(sum, code); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = make(map[lifecycle.Digest]memoryModule)
	}
	m.all[sum] = memoryModule{append([]byte(nil), code...), time.Now()}
	return nil
}

// Get implements Modules.
func (m *MemoryModules) Get(sum lifecycle.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept, ok := m.all[sum]
	if !ok {
		return nil, fmt.Errorf("module %x: %w", sum[:6], ErrNoModule)
	}
	return kept.code, nil
}

// Sweep implements Modules.
func (m *MemoryModules) Sweep(keep map[lifecycle.Digest]bool, before time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(sum lifecycle.Digest, kept memoryModule) bool { return !keep[sum] && kept.put.Before(before) })
	return nil
}

// ModuleFolder is Modules in a directory: a file for each, named by its hash. Control
// planes that share a file system may share it.
type ModuleFolder struct{ path string }

var _ Modules = (*ModuleFolder)(nil)

// moduleSuffix ends the names of a ModuleFolder's files; other files are left alone.
const moduleSuffix = ".wasm"

// NewModuleFolder returns the modules in a directory, which it creates if it does not
// exist; its parent must exist.
func NewModuleFolder(path string) (*ModuleFolder, error) {
	path, err := makeFolder(path)
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	return &ModuleFolder{path}, nil
}

func (f *ModuleFolder) name(sum lifecycle.Digest) string {
	return filepath.Join(f.path, hex.EncodeToString(sum[:])+moduleSuffix)
}

// parseModuleName returns the hash in the name of a module's file.
func parseModuleName(name string) (sum lifecycle.Digest, ok bool) {
	text, ok := strings.CutSuffix(name, moduleSuffix)
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != sha256.Size {
		return sum, false
	}
	return lifecycle.Digest(raw), true
}

func isModule(name string) bool {
	_, ok := parseModuleName(name)
	return ok
}

// Put implements Modules.
func (f *ModuleFolder) Put(sum lifecycle.Digest, code []byte) error {
	if err := CheckModule(sum, code); err != nil {
		return err
	}
	if _, err := f.Get(sum); err == nil {
		now := time.Now()
		// This counts as a new put. If the file was swept meanwhile, it is written
		// again.
		if os.Chtimes(f.name(sum), now, now) == nil {
			return nil
		}
	}
	if err := atomicfile.Write(f.name(sum), code, 0o600); err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	return nil
}

// Get implements Modules. A file whose bytes do not have the hash in its name is an
// error.
func (f *ModuleFolder) Get(sum lifecycle.Digest) ([]byte, error) {
	code, err := atomicfile.Read(f.name(sum), MaxModule)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("module %x: %w in %s", sum[:6], ErrNoModule, f.path)
	}
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	if err := CheckModule(sum, code); err != nil {
		return nil, fmt.Errorf("%w, in %s", err, f.name(sum))
	}
	return code, nil
}

// Sweep implements Modules. It also removes temporary files that an interrupted Put
// left more than an hour ago. Files with other names are left alone.
func (f *ModuleFolder) Sweep(keep map[lifecycle.Digest]bool, before time.Time) error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	errs := []error{atomicfile.RemoveStale(f.path, isModule)}
	for _, e := range entries {
		sum, ok := parseModuleName(e.Name())
		if !ok || keep[sum] {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			continue
		}
		if err := os.Remove(filepath.Join(f.path, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	return nil
}

// makeFolder creates a directory in an existing parent unless it exists, and returns
// its absolute path.
func makeFolder(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		err = os.Mkdir(path, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", path)
	}
	return path, nil
}

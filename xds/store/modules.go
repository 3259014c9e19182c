package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// MaxModule is the largest module that is kept, in bytes.
const MaxModule = policyslots.MaxModule

// ErrNoModule says that a module is not kept.
var ErrNoModule = errors.New("no such module is kept")

// Modules keeps the bytes of policy modules, by their hash. The plan object names
// them; control planes that share the one share the other.
//
//   - Put keeps bytes whose hash is sum, durably before it returns; it refuses
//     others. It may be called again.
//   - Get returns what was put, whole, or ErrNoModule (wrapped or not), or says
//     that what is kept is not what was put. The caller must not change it.
//   - Sweep removes what is not among keep, and was put before a time: whoever
//     pushes a module puts its bytes before its name is in the plan object.
//
// All may be called by any goroutine at any time.
type Modules interface {
	Put(sum lifecycle.Digest, code []byte) error
	Get(sum lifecycle.Digest) ([]byte, error)
	Sweep(keep map[lifecycle.Digest]bool, before time.Time) error
}

// checkModule says why bytes are not those of a module of a hash.
func checkModule(sum lifecycle.Digest, code []byte) error {
	switch {
	case len(code) == 0 || len(code) > MaxModule:
		return fmt.Errorf("module %x: %d bytes, want 1 to %d", sum[:6], len(code), MaxModule)
	case sha256.Sum256(code) != sum:
		return fmt.Errorf("module %x: the bytes have another hash", sum[:6])
	}
	return nil
}

// MemoryModules are Modules that live as long as the process: right for a control
// plane that is alone. The zero value is empty and ready.
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
	if err := checkModule(sum, code); err != nil {
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

// Folder is Modules in a directory: a file for each, named by its hash. Control
// planes that share a file system may share it.
type Folder struct{ path string }

var _ Modules = (*Folder)(nil)

// moduleSuffix ends the names of a Folder's files; nothing else in it is touched.
const moduleSuffix = ".wasm"

// NewFolder returns the modules in a directory, which it makes where there is
// none: its parent must exist.
func NewFolder(path string) (*Folder, error) {
	path, err := folder(path)
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	return &Folder{path}, nil
}

func (f *Folder) name(sum lifecycle.Digest) string {
	return filepath.Join(f.path, hex.EncodeToString(sum[:])+moduleSuffix)
}

// moduleOf is the module of a file's name.
func moduleOf(name string) (sum lifecycle.Digest, ok bool) {
	text, ok := strings.CutSuffix(name, moduleSuffix)
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != sha256.Size {
		return sum, false
	}
	return lifecycle.Digest(raw), true
}

func isModule(name string) bool {
	_, ok := moduleOf(name)
	return ok
}

// Put implements Modules.
func (f *Folder) Put(sum lifecycle.Digest, code []byte) error {
	if err := checkModule(sum, code); err != nil {
		return err
	}
	if _, err := f.Get(sum); err == nil {
		now := time.Now()
		// It counts as put now. Where it was swept meanwhile, it is written again.
		if os.Chtimes(f.name(sum), now, now) == nil {
			return nil
		}
	}
	temp, err := prepare(f.name(sum), code)
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	defer os.Remove(temp) // it is gone where all went well
	if err := os.Chmod(temp, 0o600); err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	if err := os.Rename(temp, f.name(sum)); err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	return syncDir(f.path)
}

// Get implements Modules. A file that is not what its name says is an error.
func (f *Folder) Get(sum lifecycle.Digest) ([]byte, error) {
	file, err := os.Open(f.name(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("module %x: %w in %s", sum[:6], ErrNoModule, f.path)
	}
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	defer file.Close()
	code, err := io.ReadAll(io.LimitReader(file, MaxModule+1))
	if err == nil {
		err = checkModule(sum, code)
	}
	if err != nil {
		return nil, fmt.Errorf("%w, in %s", err, f.name(sum))
	}
	return code, nil
}

// Sweep implements Modules. It removes, too, what a Put that was cut short left more
// than an hour ago. Files of other names are left alone.
func (f *Folder) Sweep(keep map[lifecycle.Digest]bool, before time.Time) error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	var first error
	if err := sweepTemps(f.path, isModule); err != nil {
		first = fmt.Errorf("modules: %w", err)
	}
	for _, e := range entries {
		sum, ok := moduleOf(e.Name())
		if !ok || keep[sum] {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.ModTime().Before(before) {
			continue
		}
		if err := os.Remove(filepath.Join(f.path, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) && first == nil {
			first = fmt.Errorf("modules: %w", err)
		}
	}
	return first
}

package control

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestStoreGarbage checks that a control plane which may not remove what is no longer used says so: otherwise it piles
// up unseen.
func TestStoreGarbage(t *testing.T) {
	f := newFakeFleet(t, 2)
	b := &storetest.Faulty{Backend: store.NewMemory()}
	testkit.NoError(t, b.CreateBlob(t.Context(), store.Parts, "0123456789abcdef.0000.0001", nil)) // of a writer that died
	b.Fail(func(call string) bool { return strings.HasPrefix(call, "RemoveBlob") })
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: store.New(b)})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	collect := func() {
		t.Helper()
		requireOK(t)(post(t, c, "/drain?replica=r1", nil))
		c.collect(t.Context(), time.Now())
		requireOK(t)(post(t, c, "/undrain?replica=r1", nil))
		c.collect(t.Context(), time.Now())
	}
	testkit.WaitFor(t, "ready", c.Ready)
	collect()
	waitFor(t, c, "the fault", func(s Status) bool {
		return hasFault(s, FaultStore, "garbage", "the store grows", storetest.ErrInjected.Error())
	})
	requireNamed(t, c, FaultStore, "garbage", true)
	b.Fail(nil)
	collect()
	waitFor(t, c, "no fault", func(s Status) bool { return !hasFault(s, FaultStore, "garbage") })
}

// TestStoreHangs checks that a file system which does not answer keeps neither the policy slots nor the end of Run; a
// pipe in the place of a module stands for it.
func TestStoreHangs(t *testing.T) {
	f, dir, code := newFakeFleet(t, 2), t.TempDir(), []byte("module")
	sum := sha256.Sum256(code)
	s := store.New(testkit.Must(store.NewFile(dir)))
	testkit.NoError(t, s.PutModule(t.Context(), sum, code))
	_, err := s.CompareAndSwap(t.Context(), "", store.Object{Slots: []policyslots.Slot{{Kind: "place", Floor: 1, Stable: &policyslots.Module{
		Generation: 1, Name: "m", SHA256: sum, Size: len(code), Signature: []byte("s"), At: storedTime(time.Now()),
	}}}})
	testkit.NoError(t, err)
	path := testkit.Must(filepath.Glob(filepath.Join(dir, store.Modules, hex.EncodeToString(sum[:])+".*")))[0]
	testkit.NoError(t, os.Remove(path))
	testkit.NoError(t, syscall.Mkfifo(path, 0o600))
	t.Cleanup(func() { // ends the read
		p := testkit.Must(os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0))
		testkit.NoError(t, os.Remove(path))
		p.Close()
	})
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Store: s})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	// The slot manager goes on, without the module.
	testkit.WaitFor(t, "the slot is published", func() bool {
		c.cache.mu.Lock()
		defer c.cache.mu.Unlock()
		return len(c.cache.slots) == 1
	})
	if code, _ := get(t, c, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	began := time.Now()
	c.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Run returned after %v", took)
	}
}

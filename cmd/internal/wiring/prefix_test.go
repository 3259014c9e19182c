package wiring

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// prefixFleet returns a fleet with prefix keys and a state directory, "" for none.
func prefixFleet(dir string) *Fleet {
	f := new(Fleet)
	f.Fleet = config.Fleet{State: dir, Control: config.Control{PrefixKeys: config.PrefixKeysOn}}
	return f
}

// TestPrefixSecret checks that all control planes of a state directory have one secret that
// only its owner may read, and that every fleet has another.
func TestPrefixSecret(t *testing.T) {
	load := func(f *Fleet) length.PrefixSecret {
		var s resources.Settings
		if err := f.loadPrefixSecret(&s, nil); err != nil {
			t.Error(err)
		}
		return s.PrefixSecret
	}
	dir := filepath.Join(t.TempDir(), "state")
	secrets := make([]length.PrefixSecret, 8)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() { secrets[i] = load(prefixFleet(dir)) })
	}
	wg.Wait()
	none := length.PrefixSecret{}
	for _, s := range secrets {
		if s != secrets[0] || s == none {
			t.Fatalf("secrets %v", secrets)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("the state directory has %v, %v", files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if a, b := load(prefixFleet("")), load(prefixFleet("")); a == b || a == none || a == secrets[0] {
		t.Error("two fleets without state have the same secret")
	}
	off := prefixFleet(dir)
	off.Fleet.Control.PrefixKeys = config.PrefixKeysOff
	if load(off) != none {
		t.Error("a fleet without prefix keys has a secret")
	}
	for _, bad := range []string{"", "x", strings.Repeat("0", 32), strings.Repeat("ab", 40)} {
		if err := os.WriteFile(filepath.Join(dir, prefixSecretFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		var s resources.Settings
		if err := prefixFleet(dir).loadPrefixSecret(&s, nil); err == nil || !strings.Contains(err.Error(), "remove it") || bad != "" && strings.Contains(err.Error(), bad) && len(bad) > 1 {
			t.Errorf("file %q: %v", bad, err)
		}
	}
}

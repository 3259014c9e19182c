package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
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
		state, err := f.OpenState()
		if err == nil {
			err = f.loadPrefixSecret(t.Context(), nil, &s, state)
		}
		if err != nil {
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
	files, err := os.ReadDir(filepath.Join(dir, store.Secrets))
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
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, store.Secrets, prefixSecretName), []byte(bad), 0o600))
		var s resources.Settings
		if err := prefixFleet(dir).loadPrefixSecret(t.Context(), nil, &s, testkit.Must(prefixFleet(dir).OpenState())); err == nil || !strings.Contains(err.Error(), "remove it") || bad != "" && strings.Contains(err.Error(), bad) && len(bad) > 1 {
			t.Errorf("file %q: %v", bad, err)
		}
	}
}

// TestPrefixSecretOfStateThatIsAway checks that a control plane waits for a shared state that is
// unavailable, and warns once, until it stops itself; every other error ends it at once.
func TestPrefixSecretOfStateThatIsAway(t *testing.T) {
	away, broken := fmt.Errorf("create the secret: %w", store.ErrUnavailable), errors.New("broken")
	for _, c := range []struct {
		fails int // how many attempts fail
		err   error
		calls int
		want  error
	}{
		{fails: 20, err: away, calls: 21},
		{fails: 1000, err: away, calls: 60, want: store.ErrUnavailable}, // one a second
		{fails: 20, err: broken, calls: 1, want: broken},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute-secretRetry/2)
			defer cancel()
			var calls int
			var log strings.Builder
			state := store.New(failing{store.NewMemory(), func() error {
				if calls++; calls <= c.fails {
					return c.err
				}
				return nil
			}})
			var s resources.Settings
			err := prefixFleet("etcd://a").loadPrefixSecret(ctx, slog.New(slog.NewTextHandler(&log, nil)), &s, state)
			if !errors.Is(err, c.want) || (err == nil) != (s.PrefixSecret != length.PrefixSecret{}) || calls != c.calls {
				t.Errorf("%d attempts that fail with %v: %d calls, %v", c.fails, c.err, calls, err)
			}
			if n := strings.Count(log.String(), "level=WARN"); (n == 1) != (c.err == away) || n > 1 {
				t.Errorf("%d warnings:\n%s", n, log.String())
			}
		})
	}
}

// failing is a backend in which blobs are not created while fail returns an error.
type failing struct {
	store.Backend
	fail func() error
}

func (b failing) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Backend.CreateBlob(ctx, folder, name, data)
}

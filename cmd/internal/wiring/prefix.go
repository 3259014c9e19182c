package wiring

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// prefixSecretFile is the file of the state directory with the secret of prefix keys. The
// control planes of a fleet share it: with another secret, every conversation would get
// another replica.
const prefixSecretFile = "prefix-secret"

// secretRetry is the pause between two attempts to read the secret from a shared state.
const secretRetry = time.Second

// loadPrefixSecret puts the secret of prefix keys into the settings, if the fleet gives such
// keys: the one of the shared state or of the state directory, which it creates where it is missing, or
// without a state a new one.
func (f *Fleet) loadPrefixSecret(ctx context.Context, log *slog.Logger, s *resources.Settings, state *SharedState) error {
	if f.Fleet.Control.PrefixKeys != config.PrefixKeysOn {
		return nil
	}
	if f.State == "" {
		rand.Read(s.PrefixSecret[:])
		return nil
	}
	if state != nil {
		return loadSharedSecret(ctx, log, s, state)
	}
	dir := f.StateDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	path := filepath.Join(dir, prefixSecretFile)
	text, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		var secret length.PrefixSecret
		rand.Read(secret[:])
		if err := createSecret(path, secret.Hex()+"\n"); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		text, err = readSecret(path) // of whoever was first
	}
	if err == nil {
		s.PrefixSecret, err = length.ParsePrefixSecret(strings.TrimSpace(text))
	}
	if err == nil && s.PrefixSecret == (length.PrefixSecret{}) {
		err = errors.New("all zero")
	}
	if err != nil {
		return fmt.Errorf("state: %s: %w; remove it to get a new one, with which conversations lose their replicas once", path, err)
	}
	return nil
}

// loadSharedSecret reads the secret of prefix keys from etcd or Kubernetes, and creates it where it
// is missing. While they are unavailable it tries again, until ctx ends: with another secret every
// conversation would get another replica.
func loadSharedSecret(ctx context.Context, log *slog.Logger, s *resources.Settings, state *SharedState) error {
	var secret length.PrefixSecret
	rand.Read(secret[:])
	text, err := state.CreateOnce(ctx, prefixSecretFile, []byte(secret.Hex()))
	for logged := ""; errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil; {
		if why := err.Error(); why != logged && log != nil {
			log.Warn("the state is unavailable, waiting for it to read the secret of prefix keys", "error", err)
			logged = why
		}
		select {
		case <-ctx.Done():
		case <-time.After(secretRetry):
			text, err = state.CreateOnce(ctx, prefixSecretFile, []byte(secret.Hex()))
		}
	}
	if err == nil {
		s.PrefixSecret, err = length.ParsePrefixSecret(strings.TrimSpace(string(text)))
	}
	if err == nil && s.PrefixSecret == (length.PrefixSecret{}) {
		err = errors.New("the secret of prefix keys is all zero")
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// readSecret reads the beginning of a small file.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	return string(text), err
}

// createSecret creates a file that only its owner may read, with all of its text at once. A
// file that another process has created meanwhile stays.
func createSecret(path, text string) error {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.WriteString(text)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

package wiring

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// prefixSecretName is the secret of prefix keys in a state. The control planes of a fleet share it:
// with another secret, every conversation would get another replica.
const prefixSecretName = "prefix-secret"

// secretRetry is the pause between two attempts to read the secret.
const secretRetry = time.Second

// loadPrefixSecret puts the secret of prefix keys into the settings, if the fleet gives such
// keys: the one of the state, which it creates where it is missing, or without a state a new one.
// While the state is unavailable it tries again, until ctx ends.
func (f *Fleet) loadPrefixSecret(ctx context.Context, log *slog.Logger, s *resources.Settings, state *store.Store) error {
	if f.Fleet.Control.PrefixKeys != config.PrefixKeysOn {
		return nil
	}
	if state == nil {
		rand.Read(s.PrefixSecret[:])
		return nil
	}
	var secret length.PrefixSecret
	rand.Read(secret[:])
	text, err := state.CreateOnce(ctx, prefixSecretName, []byte(secret.Hex()))
	for logged := ""; errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil; {
		if why := err.Error(); why != logged && log != nil {
			log.Warn("the state is unavailable, waiting for it to read the secret of prefix keys", "error", err)
			logged = why
		}
		select {
		case <-ctx.Done():
		case <-time.After(secretRetry):
			text, err = state.CreateOnce(ctx, prefixSecretName, []byte(secret.Hex()))
		}
	}
	if err == nil {
		s.PrefixSecret, err = length.ParsePrefixSecret(strings.TrimSpace(string(text)))
	}
	if err == nil && s.PrefixSecret == (length.PrefixSecret{}) {
		err = errors.New("all zero")
	}
	if err != nil {
		return fmt.Errorf("state: secret %s: %w; remove it to get a new one, with which conversations lose their replicas once", prefixSecretName, err)
	}
	return nil
}

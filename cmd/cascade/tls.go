package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// keyring is a daemon's keys, followed as their files rotate. Its keys are nil,
// which stands for plain text, where the fleet file has no TLS.
type keyring struct {
	*certs.Keys
	stop func()
}

// component is who a daemon is in the fleet file's tls section. An empty name is
// whatever the certificate says.
type component struct {
	role identity.Role
	name string
}

// newKeyring reads the files and begins to follow them; close ends that.
func newKeyring(files config.TLS, who component, log *slog.Logger) (keyring, error) {
	if files.Cert == "" {
		return keyring{stop: func() {}}, nil
	}
	keys, err := certs.New(certs.Config{
		Cert: files.Cert, Key: files.Key, CA: files.CA, Self: files.Want(who.role, who.name), Logger: log,
	})
	if err != nil {
		return keyring{stop: func() {}}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = keys.Run(ctx) }) // it has no errors
	return keyring{Keys: keys, stop: func() { cancel(); wg.Wait() }}, nil
}

func (k keyring) close() { k.stop() }

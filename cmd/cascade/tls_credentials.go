package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// credentials are a daemon's certificates, reloaded when their files rotate. The Provider is nil,
// for plain text, if the fleet file has no TLS.
type credentials struct {
	*certs.Provider
	stop func()
}

// component identifies a daemon in the fleet file's tls section. An empty name
// accepts the name in the certificate.
type component struct {
	role identity.Role
	name string
}

// loadCredentials reads the files and starts to watch them; close stops the watch.
func loadCredentials(files config.TLS, who component, log *slog.Logger) (credentials, error) {
	if files.Cert == "" {
		return credentials{stop: func() {}}, nil
	}
	keys, err := certs.New(certs.Config{
		Cert: files.Cert, Key: files.Key, CA: files.CA, Self: files.ExpectedIdentity(who.role, who.name), Logger: log,
	})
	if err != nil {
		return credentials{stop: func() {}}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = keys.Run(ctx) }) // Run returns no errors
	return credentials{Provider: keys, stop: func() { cancel(); wg.Wait() }}, nil
}

func (k credentials) close() { k.stop() }

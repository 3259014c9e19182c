package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxClientFile bounds each PEM file of a client, in bytes.
const maxClientFile = 1 << 20

// ClientFiles are the PEM files of a client of a server that is not Cascade's, such as etcd.
type ClientFiles struct {
	CA        string // authorities of the server's certificate; required
	Cert, Key string // of the client; "" for none
}

// FileCredentials returns gRPC credentials of a client. The files are read for every
// handshake, so that they may be replaced at any time; connections that are open stay. A
// server's certificate must carry the name or address that is dialled.
func FileCredentials(files ClientFiles) credentials.TransportCredentials {
	return fileCredentials{TransportCredentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), files: files}
}

// CheckFiles returns an error for a file that is missing or invalid.
func CheckFiles(files ClientFiles) error {
	_, err := files.config()
	return err
}

type fileCredentials struct {
	credentials.TransportCredentials // of everything but the handshake
	files                            ClientFiles
}

// ClientHandshake implements credentials.TransportCredentials.
func (c fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.files.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (c fileCredentials) Clone() credentials.TransportCredentials {
	c.TransportCredentials = c.TransportCredentials.Clone()
	return c
}

// config reads the files.
func (f ClientFiles) config() (*tls.Config, error) {
	authorities, err := atomicfile.Read(f.CA, maxClientFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s: the file has no certificate", f.CA)
	}
	if f.Cert == "" {
		return config, nil
	}
	cert, err1 := atomicfile.Read(f.Cert, maxClientFile)
	key, err2 := atomicfile.Read(f.Key, maxClientFile)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", f.Cert, f.Key, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

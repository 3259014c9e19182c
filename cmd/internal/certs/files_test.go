package certs

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestFileCredentials checks that each handshake uses the files as they are then, verifies the
// server's name, and presents the client's certificate.
func TestFileCredentials(t *testing.T) {
	dir := t.TempDir()
	files := ClientFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	serverCert, serverKey := issuePair(t, 1, "etcd.example")
	pair, err := tls.X509KeyPair(serverCert, serverKey)
	testkit.NoError(t, err)
	clientSerial := int64(0)
	server := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}, VerifyConnection: func(cs tls.ConnectionState) error {
		clientSerial = cs.PeerCertificates[0].SerialNumber.Int64()
		return nil
	}}
	// Clients of gRPC get clones of the credentials that they are given.
	credentials := FileCredentials(files).Clone()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	defer listener.Close()
	handshake := func(authority string) error {
		t.Helper()
		client, err := net.Dial("tcp", listener.Addr().String())
		testkit.NoError(t, err)
		remote, err := listener.Accept()
		testkit.NoError(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = tls.Server(remote, server).HandshakeContext(context.Background())
			remote.Close()
		}()
		_, _, err = credentials.ClientHandshake(t.Context(), authority, client)
		client.Close()
		<-ended
		return err
	}
	refused := func(what, want string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	refused("no file", "ca.pem", handshake("etcd.example:2379"))
	writeFile(t, files.CA, []byte("text"))
	refused("no certificate", "has no certificate", handshake("etcd.example:2379"))
	writeFile(t, files.CA, serverCert)
	refused("no key", "cert.pem", handshake("etcd.example:2379"))
	for serial := range int64(2) {
		cert, key := issuePair(t, 7+serial, "client")
		writeFile(t, files.Cert, cert)
		if serial > 0 {
			refused("half of a pair", "key.pem", handshake("etcd.example:2379"))
		}
		writeFile(t, files.Key, key)
		testkit.NoError(t, handshake("etcd.example:2379"))
		if clientSerial != 7+serial {
			t.Errorf("the server has seen the certificate %d, want %d", clientSerial, 7+serial)
		}
	}
	refused("another name", "not other.example", handshake("other.example:2379"))
	other, _ := issuePair(t, 2, "etcd.example")
	writeFile(t, files.CA, other)
	refused("another authority", "unknown authority", handshake("etcd.example:2379"))
	testkit.NoError(t, CheckFiles(files))
}

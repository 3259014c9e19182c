package wiring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

// maxPassword bounds the file of a password, in bytes.
const maxPassword = 4096

// openEtcd returns the etcd that state names. It reads no file and dials nothing.
func (f *Fleet) openEtcd(members []string, prefix string) (store.Backend, error) {
	c := etcd.Config{Endpoints: members, Prefix: prefix, User: f.Etcd.User}
	if e := f.etcdFiles(); e.CA != "" {
		c.Credentials = certs.FileCredentials(e)
	}
	if c.User != "" {
		c.Password = f.etcdPassword
	}
	return etcd.New(c)
}

// etcdFiles returns the PEM files of the connection to etcd, by resolved paths.
func (f *Fleet) etcdFiles() certs.ClientFiles {
	e := f.Etcd
	return certs.ClientFiles{CA: f.resolvePath(e.CA), Cert: f.resolvePath(e.Cert), Key: f.resolvePath(e.Key)}
}

// etcdPassword reads the password of the etcd user. Its errors name the file only.
func (f *Fleet) etcdPassword() (string, error) {
	path := f.resolvePath(f.Etcd.PasswordFile)
	text, err := atomicfile.Read(path, maxPassword)
	if err != nil {
		return "", fmt.Errorf("etcd.password_file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("etcd.password_file: %s: the file is empty", path)
	}
	return password, nil
}

// PlaneNotes returns the notes of the control planes that share the fleet's state; none if it
// cannot be read, or has not answered when ctx ends.
func (f *Fleet) PlaneNotes(ctx context.Context) [][]byte {
	if dir := f.StateDir(); dir != "" {
		if _, err := os.Stat(dir); err != nil { // it is on another host
			return nil
		}
	}
	state, err := f.OpenState()
	if err != nil || state == nil {
		return nil
	}
	defer state.Close()
	notes, _ := state.AllNotes(ctx, time.Now()) // those that can be read
	return notes
}

// checkEtcd returns an error for each file of the connection to etcd that is missing or invalid.
func (f *Fleet) checkEtcd(fail func(field string, err error)) {
	if _, _, ok := f.EtcdState(); !ok {
		return
	}
	if f.Etcd.PasswordFile != "" {
		_, err := f.etcdPassword()
		fail("etcd.password_file", err)
	}
	if e := f.etcdFiles(); e.CA != "" {
		fail("etcd", certs.CheckFiles(e))
	}
}

// ErrInProcess says that a fleet in one process cannot keep its state in etcd or Kubernetes.
var ErrInProcess = errors.New("state: a fleet in one process keeps its state in a directory: name one, or run control planes of their own (cascade control)")

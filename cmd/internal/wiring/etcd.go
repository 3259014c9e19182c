package wiring

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

// maxPassword bounds the file of a password, in bytes.
const maxPassword = 4096

// slotFolder is the folder, of the state directory or of etcd, for the notes of control
// planes about their policy slots.
const slotFolder = "planes"

// OpenEtcd returns the client of the etcd that state names; nil where it names none. It reads
// no file and dials nothing. The caller closes it.
func (f *Fleet) OpenEtcd() (*etcd.Client, error) {
	members, prefix, ok := f.EtcdState()
	if !ok {
		return nil, nil
	}
	c := etcd.Config{Endpoints: members, Prefix: prefix, User: f.Etcd.User}
	if e := f.etcdFiles(); e.CA != "" {
		c.Credentials = certs.FileCredentials(e)
	}
	if c.User != "" {
		c.Password = f.etcdPassword
	}
	client, err := etcd.New(c)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return client, nil
}

// etcdFiles returns the PEM files of the connection to etcd, by resolved paths.
func (f *Fleet) etcdFiles() certs.ClientFiles {
	e := f.Etcd
	return certs.ClientFiles{CA: f.resolvePath(e.CA), Cert: f.resolvePath(e.Cert), Key: f.resolvePath(e.Key)}
}

// etcdPassword reads the password of the etcd user. Its errors name the file only.
func (f *Fleet) etcdPassword() (string, error) {
	path := f.resolvePath(f.Etcd.PasswordFile)
	text, err := fileio.Read(path, maxPassword)
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
	notes := make(chan [][]byte, 1)
	go func() { notes <- f.readPlaneNotes() }() // which is left to itself if the file system hangs
	select {
	case all := <-notes:
		return all
	case <-ctx.Done():
		return nil
	}
}

func (f *Fleet) readPlaneNotes() [][]byte {
	state, err := f.OpenState()
	if err != nil {
		return nil
	}
	if state == nil {
		return readFolder(f.StateDir())
	}
	defer state.Close()
	notes, _ := state.Notes(planeFolder).All() // those that can be read
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

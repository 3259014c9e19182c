//go:build unix

package localfault

import (
	"net"
	"syscall"
	"testing"
)

// TestIsRealDial: what a dial returns when the process may open no more descriptors.
func TestIsRealDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err = net.Dial("tcp", l.Addr().String())
	if !Is(err) {
		t.Errorf("a dial without descriptors: %v", err)
	}
}

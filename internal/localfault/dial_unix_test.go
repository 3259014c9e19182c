//go:build unix

package localfault

import (
	"net"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestIsRealDial: what a dial returns when the process may open no more descriptors.
func TestIsRealDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	defer l.Close()
	var was syscall.Rlimit
	testkit.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	testkit.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: was.Max}))
	_, err = net.Dial("tcp", l.Addr().String())
	if !Is(err) {
		t.Errorf("a dial without descriptors: %v", err)
	}
}

package localfault

import (
	"errors"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
)

func TestIs(t *testing.T) {
	dial := func(err error) error {
		return &url.Error{Op: "Get", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("EOF"), false},
		{dial(os.NewSyscallError("socket", syscall.EMFILE)), true}, {dial(os.NewSyscallError("socket", syscall.ENFILE)), true},
		{dial(os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)), true}, {dial(syscall.ENOMEM), true}, {dial(syscall.ENOBUFS), true},
		{dial(syscall.ECONNREFUSED), false}, {dial(syscall.ECONNRESET), false}, {dial(syscall.EHOSTUNREACH), false}, {dial(os.ErrDeadlineExceeded), false},
		{dial(&net.DNSError{Err: "dial udp: " + syscall.EMFILE.Error(), Name: "engine"}), true},
		{dial(&net.DNSError{Err: "no such host", Name: "engine", IsNotFound: true}), false}, {dial(&net.DNSError{Err: "server misbehaving", Name: "engine"}), false},
		{errors.New("status 503: " + syscall.EMFILE.Error()), false},
	} {
		if got := Is(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

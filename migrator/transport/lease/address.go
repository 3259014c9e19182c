package lease

import (
	"errors"
	"net"
	"net/netip"
)

// CheckPlaintext returns why plain text must not be sent to an address: it is not
// loopback.
func CheckPlaintext(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return errors.New("the address is not loopback, and no TLS is configured")
	}
	return nil
}

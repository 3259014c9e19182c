package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// checker collects the errors of one validation.
type checker struct{ errs []*FieldError }

func (c *checker) fail(path, format string, args ...any) {
	c.errs = append(c.errs, &FieldError{Path: path, Msg: fmt.Sprintf(format, args...)})
}

// checkOneOf checks that a value is one of the allowed ones.
func checkOneOf(c *checker, path, v string, allowed ...string) {
	for _, a := range allowed {
		if v == a {
			return
		}
	}
	c.fail(path, "%q: must be one of %q", v, allowed)
}

// checkRange checks lo ≤ v ≤ hi; it also catches NaN.
func checkRange[T int | float64 | policies.Tokens | time.Duration](c *checker, path string, v, lo, hi T) {
	if !(v >= lo && v <= hi) {
		c.fail(path, "%v: must be from %v to %v", v, lo, hi)
	}
}

// checkAddress checks host:port with a numeric port.
func checkAddress(c *checker, path, v string) {
	host, port, err := net.SplitHostPort(v)
	if _, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil {
		c.fail(path, "%q: must be host:port, for instance 127.0.0.1:9000", v)
	}
}

// checkIP checks that the host of an address that xDS carries is an IP address:
// proxies accept nothing else.
func checkIP(c *checker, path, v string) {
	host, _, err := net.SplitHostPort(v)
	if err != nil || host == "" {
		return // checkAddress reports it
	}
	if _, err := netip.ParseAddr(host); err != nil {
		c.fail(path, "%q: proxies get this address over xDS, which needs an IP address, for instance 127.0.0.1:9000", v)
	}
}

// hostName matches host names; the last label is not a number, as in an IP address with an error.
var hostName = regexp.MustCompile(`^([0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?\.)*[A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?\.?$`)

// checkReplicaHost checks that the host of a replica's address is an IP address or a name. Proxies connect to the
// IP address that the control plane finds for a name, so they cannot verify the name in a certificate.
func (f *Fleet) checkReplicaHost(c *checker, path, v string) {
	host, _, err := net.SplitHostPort(v)
	if err != nil || host == "" {
		return // checkAddress reports it
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return
	}
	if strings.HasPrefix(v, "[") || len(host) > 253 || !hostName.MatchString(host) {
		c.fail(path, "%q: must be an IP address or a host name, and a port, for instance 127.0.0.1:9000", v)
	} else if f.TLS.ServesRequests() && f.TLS.TrustDomain == "" {
		c.fail(path, "%q: proxies connect to the IP address of this name and verify identities: set tls.trust_domain, or give an IP address", v)
	}
}

// checkEngineURL checks that an engine's URL is plain HTTP on loopback: engines have
// no authentication of their own, so only their migrator may reach them.
func checkEngineURL(c *checker, path, v string) {
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" || u.Port() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" {
		c.fail(path, "%q: must be a base URL without a path, like http://127.0.0.1:8000", v)
		return
	}
	if !isLoopback(u.Hostname()) {
		c.fail(path, "%s is not on loopback; only the migrator on the same host may reach an engine", u.Host)
	}
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

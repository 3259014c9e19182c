package config

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// listeners maps the listening addresses of the fleet's daemons to the fields of the fleet file.
type listeners struct {
	byAddress map[string]string     // the first field with an address, whose host is in canonical form
	byDaemon  map[string][]listener // by the section of a daemon and the port
}

// listener is a field that names an address. host is in canonical form.
type listener struct{ path, host string }

// claim adds the address of a field, and reports an error if another field has it. An address of all interfaces
// conflicts with the addresses of the same daemon only, because other daemons may run on other hosts.
func (l listeners) claim(c *checker, path, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" {
		return // no address, or any free port
	}
	host = canonicalHost(host)
	key, daemon := net.JoinHostPort(host, port), section(path)+":"+port
	other, taken := l.byAddress[key]
	if !taken {
		for _, o := range l.byDaemon[daemon] {
			if isUnspecified(o.host) || isUnspecified(host) {
				other, taken = o.path, true
				break
			}
		}
	}
	if taken {
		c.fail(path, "%s is also %s", address, other)
	} else {
		l.byAddress[key] = path
	}
	l.byDaemon[daemon] = append(l.byDaemon[daemon], listener{path, host})
}

// checkEngine reports an error if an engine has the address of a replica, which would then be its own engine.
func (l listeners) checkEngine(c *checker, path, engine string) {
	u, err := url.Parse(engine)
	if err != nil {
		return // checkEngineURL reports it
	}
	if other := l.byAddress[net.JoinHostPort(canonicalHost(u.Hostname()), u.Port())]; strings.HasPrefix(other, "replicas[") {
		c.fail(path, "%s is also %s", u.Host, other)
	}
}

// section returns the path of the object that a field belongs to. The listeners of a section are of one daemon.
func section(path string) string {
	return path[:strings.LastIndexByte(path, '.')]
}

// addressHost returns the host of an address in canonical form.
func addressHost(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return canonicalHost(host)
}

// hasFixedPort reports whether a URL has a port, and not 0, which is any free one.
func hasFixedPort(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Port() != "" && u.Port() != "0"
}

// canonicalHost returns one spelling for all spellings of a host.
func canonicalHost(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String()
	}
	return host
}

func isUnspecified(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}

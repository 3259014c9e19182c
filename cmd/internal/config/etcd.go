package config

import (
	"net"
	"strconv"
	"strings"
)

// Etcd says how control planes log in to etcd, where state names it. The files are read
// again for each connection, so that they may be replaced while a control plane runs.
type Etcd struct {
	// CA holds the certificates of the authorities that etcd's certificate must chain to.
	// Members on other hosts need it: without it the connection is plain text.
	CA string `yaml:"ca,omitempty"`
	// Cert is the client's certificate chain, where etcd asks for one
	// (--client-cert-auth).
	Cert string `yaml:"cert,omitempty"`
	// Key is the private key of cert.
	Key string `yaml:"key,omitempty"`
	// User is the name of an etcd user with a role that may read and write the keys below
	// the prefix of state, where etcd has authentication enabled and does not take the
	// user from cert.
	User string `yaml:"user,omitempty"`
	// PasswordFile contains the password of user.
	PasswordFile string `yaml:"password_file,omitempty"`
}

const (
	etcdScheme     = "etcd://"
	maxEtcdPrefix  = 256 // bytes
	maxEtcdMembers = 16
)

// EtcdState returns the members, host:port, and the prefix of all keys that state names; ok
// is false where it names no etcd.
func (f *Fleet) EtcdState() (members []string, prefix string, ok bool) {
	rest, ok := strings.CutPrefix(f.State, etcdScheme)
	if !ok {
		return nil, "", false
	}
	hosts, path, _ := strings.Cut(rest, "/")
	return strings.Split(hosts, ","), "/" + strings.TrimSuffix(path, "/"), true
}

// validateState checks what state names. It prints no part of it that may be a password.
func (f *Fleet) validateState(c *checker) {
	e := f.Etcd
	if (e.Cert == "") != (e.Key == "") {
		c.fail("etcd", "cert and key belong together: set both or none")
	}
	if e.Cert != "" && e.CA == "" {
		c.fail("etcd.ca", "a certificate needs TLS: set the authorities of etcd's certificate")
	}
	if (e.User == "") != (e.PasswordFile == "") {
		c.fail("etcd", "user and password_file belong together: set both or none")
	}
	if namespace, name, ok := f.KubernetesState(); ok {
		validateKubernetes(c, namespace, name)
		return
	}
	members, prefix, ok := f.EtcdState()
	if !ok {
		if scheme, _, found := strings.Cut(f.State, "://"); found {
			c.fail("state", "%.20s: must be a directory, etcd://HOST:2379/PREFIX or kubernetes://NAMESPACE/NAME", scheme+"://…")
		}
		return
	}
	if strings.ContainsAny(f.State, "@?#") {
		c.fail("state", "must have the form etcd://HOST:2379,HOST:2379/PREFIX; a user and a password are set by etcd.user and etcd.password_file")
		return
	}
	if len(members) > maxEtcdMembers {
		c.fail("state", "%d members: at most %d are allowed", len(members), maxEtcdMembers)
	}
	for _, m := range members {
		host, port, err := net.SplitHostPort(m)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil {
			c.fail("state", "%q: each member of etcd must be HOST:PORT, as in etcd://10.0.0.1:2379,10.0.0.2:2379/cascade", m)
		} else if e.CA == "" && !isLoopback(host) {
			c.fail("etcd.ca", "%s is not on loopback, and plans, modules and secrets would travel there in plain text: serve etcd by TLS, and set the authorities of its certificate", m)
		}
	}
	if prefix == "/" || len(prefix) > maxEtcdPrefix || strings.Contains(prefix, "//") || strings.IndexFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		c.fail("state", "must end with a prefix for the keys of this fleet alone, of up to %d printable characters, as in etcd://10.0.0.1:2379/cascade/fleet-a", maxEtcdPrefix)
	}
}

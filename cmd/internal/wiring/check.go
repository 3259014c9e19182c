package wiring

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Check reads the files that daemons of the fleet read at start, except those of
// tls, and returns an error for each field whose file is missing or invalid. It
// changes nothing.
func (f *Fleet) Check() (bad []*config.FieldError) {
	fail := func(field string, err error) {
		if err != nil {
			bad = append(bad, &config.FieldError{Path: field, Msg: strings.TrimPrefix(err.Error(), field+": ")})
		}
	}
	if f.ModulesEnabled() {
		_, bad = f.keyRing()
	}
	rules := RegoRules{Files: map[string]string{}}
	for i, name := range f.Fleet.Policies.Rules {
		fail(fmt.Sprintf("policies.rules[%d]", i), rules.read(f.resolvePath(name)))
	}
	for i, m := range f.Models {
		if m.History != "" {
			_, err := f.readHistory(m)
			fail(fmt.Sprintf("models[%d].history", i), err)
		}
	}
	_, err := localuser.New(f.Fleet.Control.AdminUsers)
	fail("control.admin_users", err)
	_, err = localuser.New(f.Fleet.Control.SocketUsers)
	fail("control.socket_users", err)
	_, err = f.consoleToken()
	fail("control.console_token_file", err)
	f.checkEtcd(fail)
	fail("control.estimator", f.loadEstimator(&resources.Settings{}))
	if t := f.Fleet.Proxy.TLS; t.Cert != "" {
		cert, key := f.resolvePath(t.Cert), f.resolvePath(t.Key)
		_, err := tls.LoadX509KeyPair(cert, key)
		var path *fs.PathError
		switch {
		case err == nil:
		case errors.As(err, &path) && path.Path == key && key != cert:
			fail("proxy.tls.key", err)
		case errors.As(err, &path):
			fail("proxy.tls.cert", err)
		default:
			fail("proxy.tls.cert", fmt.Errorf("%s with %s: %w", cert, key, err))
		}
	}
	return bad
}

// ModuleFleet returns the name of the fleet in the statements of its modules.
func (f *Fleet) ModuleFleet() string {
	return cmp.Or(f.Fleet.Policies.Fleet, f.Fleet.TLS.TrustDomain, sign.DefaultFleet)
}

// keyRing returns the keys whose signatures count, and an error for each file that
// cannot be read, or for too few keys.
func (f *Fleet) keyRing() (r sign.Ring, bad []*config.FieldError) {
	c := f.Fleet.Policies
	r.Fleet, r.Threshold = f.ModuleFleet(), max(c.Threshold, 1)
	for i, file := range c.Keys {
		keys, err := ReadKeys(f.resolvePath(file))
		if err != nil {
			bad = append(bad, &config.FieldError{Path: fmt.Sprintf("policies.keys[%d]", i), Msg: err.Error()})
		}
		r.Keys = append(r.Keys, keys...)
	}
	r.Keys = append(r.Keys, f.Trusted...)
	if err := r.Validate(); len(bad) == 0 && err != nil {
		bad = append(bad, &config.FieldError{Path: "policies.keys", Msg: fmt.Sprintf("with threshold %d: %v", r.Threshold, err)})
	}
	return r, bad
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
)

// tlsInitFlags are the flags of "cascade tls".
type tlsInitFlags struct {
	file                                    fleetFile
	out, trustDomain                        string
	proxies, migrators, controls, operators []string
	hosts                                   []string
}

// newTLS is "cascade tls": certificates for development.
func newTLS(s *settings) *cobra.Command {
	i := &tlsInitFlags{}
	c := &cobra.Command{
		Use:   "tls --out DIR",
		Short: "Issue certificates with identities, for development",
		Long: `Tls makes a small certificate authority in a directory, if it is not there yet, and
issues a certificate for each component that is named: ECDSA P-256, good for 30 days,
with one URI name, spiffe://<trust domain>/<role>/<name>. The names are those by which
the components know each other: a proxy's is its node id, a migrator's its replica's
id, a control plane's its --name, or what it has without one. With -c every replica
of the fleet file gets one, and every control plane too, those of control.peers by
their hosts and ports, unless --control names them. Certificates need no host names,
but for gRPC clients: they know a control plane by the host that they dial, those of
control.listen and control.peers of the file and every --host.

Run it again to issue new certificates from the same authority: running daemons use the new
files within 10 s, Envoys at once where "cascade envoy-bootstrap --out" made
their configuration. The authority is good for a year.

This is for development: the authority's key is an unprotected file, certificates cannot be
revoked, and nothing renews them. In production use the issuer that you have, such as
SPIRE, cert-manager or Vault.`,
		Example: `  cascade tls --out tls --trust-domain example.org --proxy edge -c fleet.yaml
  cascade tls --out tls --trust-domain example.org --control main --migrator r0 --migrator r1
  cascade tls --out tls --migrator r2       # one more, from the same authority`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.initTLS(cmd, i) },
	}
	f := c.Flags()
	f.StringVar(&i.out, "out", "", "directory of the authority and the certificates; required")
	f.StringVar(&i.trustDomain, "trust-domain", "", "trust domain of a new authority, for instance example.org")
	f.StringArrayVar(&i.proxies, "proxy", nil, "node id of an Envoy or an embedded proxy; may be repeated")
	f.StringArrayVar(&i.migrators, "migrator", nil, "id of a replica; may be repeated")
	f.StringArrayVar(&i.controls, "control", nil, "name of a control plane; may be repeated")
	f.StringArrayVar(&i.operators, "operator", nil, "name of an operator; may be repeated")
	f.StringArrayVar(&i.hosts, "host", nil, "host name or IP address for the certificates of control planes; may be repeated")
	i.file.flag(c, "fleet file, for a certificate of each of its replicas and of the control plane")
	return c
}

// issuedCertificate is a certificate that was written.
type issuedCertificate struct {
	Identity string `json:"identity"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
}

func (s *settings) initTLS(cmd *cobra.Command, i *tlsInitFlags) error {
	if i.out == "" {
		return cli.Usagef(cmd, "name a directory with --out")
	}
	if i.file.path != "" {
		fleet, err := config.Load(i.file.path)
		if err != nil {
			return err
		}
		file := wiring.Fleet{Fleet: fleet, Dir: filepath.Dir(i.file.path)}
		for _, r := range fleet.Replicas {
			i.migrators = append(i.migrators, r.ID)
		}
		if len(i.controls) == 0 {
			i.controls = file.ControlCertificates()
		}
		for _, address := range file.ControlPlanes() {
			if host, _, err := net.SplitHostPort(address); err == nil && !slices.Contains(i.hosts, host) {
				i.hosts = append(i.hosts, host)
			}
		}
		i.trustDomain = cmp.Or(i.trustDomain, fleet.TLS.TrustDomain)
	}
	now := time.Now()
	authority, made, err := openAuthority(cmd, i, now)
	if err != nil {
		return err
	}
	ids, err := i.identities(cmd, authority.TrustDomain())
	if err != nil {
		return err
	}
	if made { // only once the whole command line is valid
		if err := authority.Save(i.out); err != nil {
			return err
		}
	}
	var list []issuedCertificate
	for _, id := range ids {
		dir := filepath.Join(i.out, string(id.Role), identity.Escape(id.Name))
		var hosts []string
		if id.Role == identity.Control {
			hosts = i.hosts
		}
		if err := authority.Issue(dir, id, hosts, now); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		list = append(list, issuedCertificate{id.String(), filepath.Join(dir, devca.Cert), filepath.Join(dir, devca.Key)})
	}
	// The paths of the section are relative to the fleet file.
	beside := i.out
	if i.file.path != "" {
		if filepath.IsAbs(i.file.path) {
			if beside, err = filepath.Abs(i.out); err != nil {
				return err
			}
		}
		if rel, err := filepath.Rel(filepath.Dir(i.file.path), beside); err == nil {
			beside = rel
		}
	}
	return s.printIssued(beside, authority, list)
}

// openAuthority loads the authority in the directory. If there is none, it creates one, which the
// caller writes, and returns made = true.
func openAuthority(cmd *cobra.Command, i *tlsInitFlags, now time.Time) (a *devca.Authority, made bool, err error) {
	a, err = devca.Load(i.out)
	switch {
	case err == nil && i.trustDomain != "" && i.trustDomain != a.TrustDomain():
		return nil, false, fmt.Errorf("%s has the authority of %s, not of %s: name another directory with --out", i.out, a.TrustDomain(), i.trustDomain)
	case !errors.Is(err, os.ErrNotExist):
		return a, false, err
	case i.trustDomain == "":
		return nil, false, cli.Usagef(cmd, "%s has no authority yet: name the trust domain of a new one with --trust-domain", i.out)
	}
	for _, name := range []string{devca.AuthorityCert, devca.AuthorityKey} {
		if _, err := os.Stat(filepath.Join(i.out, name)); err == nil {
			return nil, false, fmt.Errorf("%s has %s, but not a complete authority: move it away, or name another directory", i.out, name)
		}
	}
	a, err = devca.New(i.trustDomain, now)
	return a, true, err
}

// identities returns the identities that the flags name, each once.
func (i *tlsInitFlags) identities(cmd *cobra.Command, trustDomain string) ([]identity.ID, error) {
	var ids []identity.ID
	for _, part := range []struct {
		role  identity.Role
		names []string
	}{{identity.Control, i.controls}, {identity.Migrator, i.migrators}, {identity.Proxy, i.proxies}, {identity.Operator, i.operators}} {
		for _, name := range part.names {
			id, err := identity.New(trustDomain, part.role, name)
			if err != nil {
				return nil, cli.Usagef(cmd, "--%s %q: %w", part.role, name, err)
			}
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return nil, cli.Usagef(cmd, "name the components: --control, --migrator, --proxy, --operator or -c")
	}
	return ids, nil
}

func (s *settings) printIssued(out string, a *devca.Authority, list []issuedCertificate) error {
	section := config.TLS{
		Cert: filepath.Join(out, "{role}", "{name}", devca.Cert), Key: filepath.Join(out, "{role}", "{name}", devca.Key),
		CA: filepath.Join(out, devca.AuthorityCert), TrustDomain: a.TrustDomain(),
	}
	if s.JSON {
		return s.Print(struct {
			TrustDomain string              `json:"trust_domain"`
			CA          string              `json:"ca"`
			Until       time.Time           `json:"ca_until"`
			Cert        string              `json:"cert"`
			Key         string              `json:"key"`
			Issued      []issuedCertificate `json:"issued"`
		}{section.TrustDomain, section.CA, a.NotAfter(), section.Cert, section.Key, list})
	}
	for _, x := range list {
		if _, err := fmt.Fprintf(s.Stdout, "%s\n  %s\n", x.Identity, x.Cert); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(s.Stdout, `
Good for 30 days, for development only. In the fleet file (paths are relative to it):

tls:
  trust_domain: %s
  ca: %s
  cert: %q
  key: %q
`, section.TrustDomain, section.CA, section.Cert, section.Key)
	return err
}

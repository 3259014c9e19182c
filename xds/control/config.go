package control

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Control.
type Config struct {
	// Rules are the models and how they are planned; see package fleet.
	fleet.Rules
	// Replicas is the configured list at the start; see Control.SetReplicas. The host of an Address may be a name.
	Replicas []policies.Replica
	// Resolver looks up names in Replicas; nil: the host's.
	Resolver Resolver
	// Settings of the published resources. If the estimator is ext_proc and
	// Settings.Length is empty, this process is the length service.
	Settings resources.Settings

	// Proxies are the node ids of the fleet's own proxies, as patterns of path.Match. With
	// a TrustDomain every proxy with a certificate counts in rollouts; without one only
	// these do, and only their load reports are accepted.
	Proxies []string
	// EdgeCertificate is the certificate that Envoys present to clients, which then use
	// TLS for the listener; nil means plain text. Only Proxies are sent it, and only with
	// a TrustDomain, because a node id without a certificate is only a claim. See
	// Control.SetEdgeCertificate.
	EdgeCertificate *resources.Certificate

	// Listen is the host:port of the gRPC server: xDS, load reports and,
	// without TLS, the length service. "" means 127.0.0.1:18000; port 0 any
	// free one.
	Listen string
	// Listener is used instead of Listen, and closed by Run, if not nil.
	Listener net.Listener
	// Local is a listener of the same services for the fleet's own components on this host, a Unix socket that has
	// checked their users; Run closes it. With it, clients of Listen only follow the configuration, and what they
	// refuse or report counts for nothing. nil: every client of Listen is trusted, as far as its certificate goes.
	Local net.Listener
	// Admin is the host:port of the admin server: /status, /metrics, /healthz,
	// /readyz and the others. "" means 127.0.0.1:18001.
	Admin string
	// AdminListener is used instead of Admin, and closed by Run, if not nil.
	AdminListener net.Listener
	// Problems returns what this process lacks or will lack soon; nil returns nothing.
	Problems func() []loadreport.Problem
	// Collectors are further metrics for /metrics, about the process.
	Collectors []prometheus.Collector
	// AdminHosts are the host names, in lower case and without a port, that requests to
	// the admin server may name besides loopback, for instance the names of a proxy in
	// front of it. Requests for any other name are refused.
	AdminHosts []string
	// Plaintext names what may travel unencrypted between hosts, for Status.
	Plaintext []string
	// AdmitOrder returns why the client of a connection to the admin server may not give
	// orders: requests that change something. nil: every client that can connect may.
	AdmitOrder func(client, server netip.AddrPort) error
	// ConsoleToken is what a viewer of the console must know to give orders there; see
	// console.CheckToken. AdmitOrder holds for them, too. "": the console only reads.
	ConsoleToken string
	// UserOf names the local user behind a connection to the admin server, for the audit log; "" where it is not
	// known. nil: it is not looked for. It must not block.
	UserOf func(client, server netip.AddrPort) string
	// Audit records orders, plans, promotions and refusals; Run runs it. nil: nothing is recorded.
	Audit *auditlog.Log
	// TLS secures the gRPC server and decides whether it asks for client
	// certificates. nil is plain text, which is allowed on loopback addresses
	// only. The admin server is always plain text, and on loopback.
	TLS *tls.Config
	// TrustDomain authenticates the clients of the gRPC server by their certificates
	// (package nodeauth): proxies and migrators may request and report only what is
	// their own. It needs TLS that requires client certificates. "" trusts the names
	// that clients claim.
	TrustDomain string
	// Length is the host:port, on loopback, of the length service where it
	// cannot share the gRPC server's: with TLS, because the proxy beside it
	// calls it without a certificate. "" means 127.0.0.1:18002.
	Length string

	// Limits bound what one xDS node may cost.
	Limits server.Limits

	// Groups are the groups of proxies in the order in which they get a new
	// plan (resources.Groups). Without any, an eighth of all proxies gets it
	// first.
	Groups []resources.GroupRule
	// Watch is how long a new plan is on trial in one group before the next group gets
	// it; there is no trial if only one group has proxies. 0 means 2 s.
	Watch time.Duration

	// Store keeps what the control planes of a fleet share; nil keeps it in memory.
	Store *store.Store
	// Admitter decides which policy modules are admitted; nil: none.
	Admitter Admitter
	// Slots are the policy slots of this control plane itself; nil: it has
	// none.
	Slots Slots
	// Mixes are the request mixes that a what-if of the console may ask about; nil: none.
	Mixes Mixes
	// Records answers GET /policies/records?slot=KIND with the recorded calls
	// of a slot of this process. nil: 404.
	Records http.Handler
	// FleetFile describes the fleet file of this configuration; control planes of one store
	// compare theirs. Without a Digest it is that of Replicas. See Control.SetFleetFile.
	FleetFile FleetFile
	// Stop bounds the time that Run waits for streams to end when its context ends; the
	// remaining streams are cut. 0 means 5 s.
	Stop   time.Duration
	Logger *slog.Logger // nil discards
}

const (
	defaultListen = "127.0.0.1:18000"
	defaultAdmin  = "127.0.0.1:18001"
	defaultLength = "127.0.0.1:18002"
	defaultName   = "control" // of the only control plane of a store
	defaultStop   = 5 * time.Second
	defaultWatch  = 2 * time.Second
)

// complete fills in the defaults.
func (c Config) complete() Config {
	if c.Listen == "" {
		c.Listen = defaultListen
	}
	if c.Policy == "" {
		c.Policy = fleet.PolicyDefault
	}
	if c.Admin == "" {
		c.Admin = defaultAdmin
	}
	if c.Length == "" {
		c.Length = defaultLength
	}
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Store == nil {
		c.Store = store.New(store.NewMemory())
	}
	if c.Stop == 0 {
		c.Stop = defaultStop
	}
	if c.Watch == 0 {
		c.Watch = defaultWatch
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate checks the addresses. The other fields are checked by the packages that use
// them.
func (c Config) validate() error {
	if c.Stop < 0 {
		return fmt.Errorf("stop %v: must not be negative", c.Stop)
	}
	if c.Watch < 0 {
		return fmt.Errorf("watch %v: must not be negative", c.Watch)
	}
	listen, admin := c.Listen, c.Admin
	if c.Listener != nil {
		listen = c.Listener.Addr().String()
	}
	if c.AdminListener != nil {
		admin = c.AdminListener.Addr().String()
	}
	if c.TLS == nil {
		if err := checkLoopback(listen); err != nil {
			return fmt.Errorf("listen %s: %w: set tls, or listen on a loopback address", listen, err)
		}
	}
	if c.TrustDomain != "" && c.TLS == nil {
		return fmt.Errorf("trust domain %s: TLS is required, because identities are in certificates", c.TrustDomain)
	}
	if err := resources.CheckPatterns(c.Proxies); err != nil {
		return fmt.Errorf("proxies: %w", err)
	}
	if c.EdgeCertificate != nil {
		if c.TrustDomain == "" || len(c.Proxies) == 0 {
			return errors.New("edge certificate: its key is sent only to listed proxies that have proved their names; set the trust domain and the proxies")
		}
		if err := resources.CheckSpecific(c.Proxies); err != nil {
			return fmt.Errorf("edge certificate: proxies: %w", err)
		}
	}
	if err := checkLoopback(admin); err != nil {
		return fmt.Errorf("admin %s: %w: the admin server has no authentication; listen on a loopback address", admin, err)
	}
	if err := checkLoopback(c.Length); err != nil {
		return fmt.Errorf("length %s: %w: prompts are sent there in plain text", c.Length, err)
	}
	return nil
}

var errNotLoopback = errors.New("not a loopback address")

// checkLoopback returns an error for an address that other hosts can reach.
// Names are not resolved, because their meaning can change.
func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return errNotLoopback
	}
	return nil
}

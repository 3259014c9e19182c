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

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/nodegroup"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Control.
type Config struct {
	// Rules are the models and how they are planned; see package fleet.
	fleet.Rules
	// Replicas is the configured list at start; see Control.SetReplicas.
	Replicas []policies.Replica
	// Settings of the published resources. Where the estimator is ext_proc and
	// Settings.Length is empty, this process is the length service.
	Settings resources.Settings

	// EdgeCertificate is the certificate that Envoys show to clients, who then speak TLS to
	// the listener; nil is plain text. See Control.SetEdge.
	EdgeCertificate *resources.Certificate

	// Listen is the host:port of the gRPC server: xDS, load reports and, without
	// TLS, the length service. "" means 127.0.0.1:18000; port 0 any free one.
	Listen string
	// Listener is used instead of Listen, and closed by Run, if not nil.
	Listener net.Listener
	// Admin is the host:port of /status, /metrics, /healthz and /readyz. ""
	// means 127.0.0.1:18001.
	Admin string
	// AdminListener is used instead of Admin, and closed by Run, if not nil.
	AdminListener net.Listener
	// AdminHosts are the names, in lower case and without a port, by which the
	// admin server may be asked besides those of loopback: those of a proxy in
	// front of it, for instance. Requests for any other name are refused.
	AdminHosts []string
	// TLS secures the gRPC server; to ask for client certificates is its
	// matter. nil is plain text, which only loopback addresses may listen for.
	// The admin server is always plain text, and on loopback.
	TLS *tls.Config
	// TrustDomain makes clients of the gRPC server be who their certificates say
	// (package binding): proxies and migrators ask for and report their own. It
	// needs TLS that demands certificates. "" believes what clients claim.
	TrustDomain string
	// Length is the host:port, on loopback, of the length service where it
	// cannot share the gRPC server's: with TLS, because the proxy beside it
	// calls it without a certificate. "" means 127.0.0.1:18002.
	Length string

	// Limits bound what one xDS node may cost.
	Limits server.Limits

	// Groups are the groups of proxies in the order in which a new plan comes to
	// them (package group). Without any, an eighth of all proxies comes first.
	Groups []nodegroup.Rule
	// Watch is how long a new plan is on trial in one group before the next one
	// gets it; nobody waits where only one group has proxies. 0 means 2 s.
	Watch time.Duration

	// Store holds the plan object; nil keeps it in memory.
	Store store.Store
	// Admitter says which policy modules may come; nil: none.
	Admitter Admitter
	// Modules keeps the bytes of those that came, for all control planes of the
	// Store; nil keeps them in memory, which is right for one that is alone.
	Modules store.Modules
	// Slots are the policy slots of this control plane itself; nil: it has none.
	Slots Slots
	// Notes are where the control planes of the Store tell each other what became of
	// their own slots, once a second. It is used where the Store is shared and there
	// are Slots. Nil: each knows of its own alone.
	Notes store.Notes
	// Records answers GET /policies/records?slot=KIND: what a slot of this process has
	// recorded. Nil: 404.
	Records http.Handler
	// Counters keeps flows, weights and byte ratios across restarts; nil
	// forgets them.
	Counters fleet.Counters
	// Stop bounds the time that Run takes to end streams when its context
	// ends; what is left then is cut. 0 means 5 s.
	Stop   time.Duration
	Logger *slog.Logger // nil discards
}

const (
	defaultListen = "127.0.0.1:18000"
	defaultAdmin  = "127.0.0.1:18001"
	defaultLength = "127.0.0.1:18002"
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
	if c.Store == nil {
		c.Store = new(store.Memory)
	}
	if c.Modules == nil {
		c.Modules = new(store.MemoryModules)
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

// validate reports what is wrong with the addresses. The rest is checked by
// those it is for.
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
			return fmt.Errorf("listen %s: %w: give TLS, or an address of loopback", listen, err)
		}
	}
	if c.TrustDomain != "" && c.TLS == nil {
		return fmt.Errorf("trust domain %s: identities are in certificates: give TLS", c.TrustDomain)
	}
	if err := checkLoopback(admin); err != nil {
		return fmt.Errorf("admin %s: %w: the admin page has no authentication; give an address of loopback", admin, err)
	}
	if err := checkLoopback(c.Length); err != nil {
		return fmt.Errorf("length %s: %w: prompts pass there in plain text", c.Length, err)
	}
	return nil
}

var errNotLoopback = errors.New("not an address of loopback")

// checkLoopback says why an address is not one that only this machine can reach.
// Names are not resolved: what they mean can change.
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

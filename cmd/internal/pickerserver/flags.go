// Package pickerserver has what the endpoint pickers of both binaries share: the flags that the
// reference picker of the Gateway API Inference Extension has too, the credentials, and how the
// gRPC servers run and end.
//
// A command adds Flags to its own, makes the picker, opens the listeners with Listen, and runs
// the servers with Serve.
package pickerserver

import (
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// Flags are the flags of a picker's servers.
type Flags struct {
	Host                              string
	GRPCPort, HealthPort, MetricsPort uint16
	Fallbacks                         int
	Secure                            bool
	CertPath                          string
	// ConfigFile is the reference picker's configuration.
	ConfigFile                         string
	PoolName, PoolNamespace, PoolGroup string
	Drain                              time.Duration
}

// ignored are flags of the reference picker that its Helm charts pass and that have no meaning
// here: Cascade's migrators know their engines, and every replica of a picker serves.
var ignored = [...]string{
	"v", "zap-encoder", "zap-log-level", "tracing", "metrics-endpoint-auth", "health-checking", "ha-enable-leader-election",
	"endpoint-selector", "endpoint-target-ports", "total-queued-requests-metric", "total-running-requests-metric",
	"kv-cache-usage-percentage-metric", "lora-info-metric", "cache-info-metric", "model-server-metrics-path",
}

// AddTo defines the flags of a command.
func (p *Flags) AddTo(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&p.Fallbacks, "fallbacks", 0, "how many addresses follow the first one, 0 to 3, for gateways that try a list in order; Envoy's ORIGINAL_DST clusters can read one only")
	f.StringVar(&p.Host, "host", "127.0.0.1", "IP address to listen on")
	f.Uint16Var(&p.GRPCPort, "grpc-port", 9002, "port of the picker (ext_proc)")
	f.Uint16Var(&p.HealthPort, "grpc-health-port", 9003, "port of the gRPC health service, for probes; in plain text")
	f.Uint16Var(&p.MetricsPort, "metrics-port", 9090, "port of /metrics, /healthz and /readyz")
	f.BoolVar(&p.Secure, "secure-serving", false, "without other certificates, serve TLS with a self-signed one")
	f.StringVar(&p.CertPath, "cert-path", "", "directory with tls.crt and tls.key to serve TLS with; gateways need no certificate then")
	f.DurationVar(&p.Drain, "drain", 2*time.Minute, "how long responses may go on after SIGTERM; what is left is cut")
	f.StringVar(&p.ConfigFile, "config-file", "", "ignored")
	f.Lookup("config-file").Hidden = true
	for _, name := range ignored {
		f.String(name, "", "ignored")
		f.Lookup(name).Hidden = true
	}
	f.Lookup("ha-enable-leader-election").NoOptDefVal = "true"
}

// Address returns the address of a port on the host of the flags.
func (p *Flags) Address(port uint16) string {
	return net.JoinHostPort(p.Host, strconv.Itoa(int(port)))
}

// MetricsAddress returns the address of the metrics: on loopback, unless the server of metrics has a certificate.
func (p *Flags) MetricsAddress(secure bool) string {
	if secure {
		return p.Address(p.MetricsPort)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.MetricsPort)))
}

// Package length is the length estimator as an ext_proc service: it answers
// Envoy's question about a request with the two headers that the routes match
// on, the estimated prompt length and the model.
//
// It is the estimator of policies/length behind Envoy's external processing
// protocol (envoy.service.ext_proc.v3) and nothing else: it chooses no stage
// and keeps no state between requests. It looks at headers when they tell
// enough and asks for the body only when they do not: no content-length, or a
// host name that several models share. It fails open: whatever goes wrong
// with one request, that request goes on to the route for requests without an
// estimate, which is the longest stage.
//
// The filter must be configured with request_body_mode NONE (or BUFFERED),
// allow_mode_override, and mutation rules that let both headers through.
// Client-supplied values are stripped by early header mutation, before any
// route is looked up; this service overwrites what it sets and removes what it
// does not, as a second line.
package length

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/cascadeinfer/cascade/policies/length"
)

const (
	// DefaultMaxBody is the buffer limit of Cascade's listener: Envoy buffers
	// no larger body anyway.
	DefaultMaxBody = 16 << 20
	// DefaultDeadline covers the slow upload of a body without a length. How
	// long Envoy waits for an answer is its own message_timeout.
	DefaultDeadline = 60 * time.Second
	// maxHeaders is what a message may hold beside the body: Envoy's own
	// limit on request headers is 60 KiB.
	maxHeaders = 256 << 10
	// maxStreams bounds concurrent requests of one Envoy connection.
	maxStreams = 100_000
	// pingAfter and pingTimeout find a dead Envoy.
	pingAfter, pingTimeout = 30 * time.Second, 5 * time.Second
)

// Config says which models there are and what bounds hold.
type Config struct {
	// Models are the models of the fleet; at least one.
	Models []Model
	// BytesPerToken tells a model's present ratio; it is asked for every
	// request, with "" for a model that is not known, and from any goroutine.
	// nil, or an answer of 0, means length.DefaultRatio. The routes by
	// content-length must be rendered from the same ratio to agree with the
	// estimate.
	BytesPerToken func(model string) length.Ratio
	// BaseOf tells the model of a LoRA adapter by the adapter's name, "" for a name
	// that is none's. It is asked about names in bodies that are no model's, from
	// any goroutine. nil knows no adapter.
	BaseOf func(adapter string) string
	// MaxBody is the largest body that is read, in bytes; a larger one that
	// would have to be read is refused with 413. Default DefaultMaxBody.
	MaxBody int
	// Deadline bounds one request's stream from its first message to its
	// last, the upload of the body included. Default DefaultDeadline.
	Deadline time.Duration
	// Health, if set, is told that the service serves, once registered.
	Health *health.Server
	// Metrics, if set, gets the service's metrics.
	Metrics prometheus.Registerer
	// Logger is for what an operator must know; nil discards.
	Logger *slog.Logger
}

// Model is a model and the hosts that serve it.
type Model struct {
	// Name as clients name it in the body; 1 to length.MaxModel bytes without
	// control characters, and unique.
	Name string
	// Hosts are the authorities of the model, without ports: a name, "*" or
	// "*" and a suffix, as in an Envoy virtual host. A request to a host of
	// just one model needs no look into its body to know the model. The only
	// model of a fleet may leave them out and then owns every host.
	Hosts []string
}

func (c *Config) validate() error {
	switch {
	case len(c.Models) == 0:
		return errors.New("length: Models is empty; name at least one model")
	case c.MaxBody < 0:
		return fmt.Errorf("length: MaxBody is %d; use a positive number of bytes, or 0 for %d", c.MaxBody, DefaultMaxBody)
	case c.Deadline < 0:
		return fmt.Errorf("length: Deadline is %s; use a positive duration, or 0 for %s", c.Deadline, DefaultDeadline)
	}
	if c.BytesPerToken == nil {
		c.BytesPerToken = func(string) length.Ratio { return length.DefaultRatio }
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server answers Envoy. All of its methods may be called from any goroutine.
type Server struct {
	extproc.UnimplementedExternalProcessorServer

	config  Config // fixed after New
	models  models // fixed after New
	metrics metrics
	warned  sync.Once // of a filter that asks in a mode we cannot answer
}

var _ extproc.ExternalProcessorServer = (*Server)(nil)

// New returns a Server. It starts nothing; Register it with a gRPC server.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	m, err := newModels(c.Models)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, models: m, metrics: newMetrics()}
	if c.Metrics != nil {
		if err := c.Metrics.Register(s.metrics); err != nil {
			return nil, fmt.Errorf("length: register metrics: %w", err)
		}
	}
	return s, nil
}

// Register adds the service to a gRPC server that was made with Options.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	extproc.RegisterExternalProcessorServer(r, s)
	if s.config.Health != nil {
		s.config.Health.SetServingStatus(extproc.ExternalProcessor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	}
}

// Options returns what a gRPC server needs to carry bodies of MaxBody; the
// default limit of 4 MiB would fail larger ones.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.config.MaxBody + maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		// Envoy pings idle connections of its own; without this it would be
		// told to go away.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingTimeout, PermitWithoutStream: true}),
	}
}

// Package length is the length estimator as an ext_proc service: for each request of an
// Envoy it returns the headers that the routes match on: the estimated prompt length and the
// model.
//
// It puts the estimator of policies/length behind Envoy's external processing protocol
// (envoy.service.ext_proc.v3). It chooses no stage and keeps no state between requests.
// It uses the headers if they suffice and requests the body only if they do not: there
// is no content-length, or several models share the host name. It fails open: after any
// error the request continues on the route for requests without an estimate, which leads
// to the longest stage.
//
// The filter must be configured with request_body_mode NONE (or BUFFERED),
// allow_mode_override, and mutation rules that allow these headers. Early header mutation
// removes values that the client sent before any route is looked up; as a second line of
// defence, this service overwrites the headers it sets and removes those it does not.
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

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config lists the models and sets the bounds.
type Config struct {
	// Models are the models of the fleet; at least one.
	Models []Model
	// BytesPerToken returns a model's present ratio. It is called for every request, with ""
	// for an unknown model, from any goroutine. nil, or a result of 0, means
	// length.DefaultRatio. The routes by content-length must be rendered with the same ratio
	// to agree with the estimate.
	BytesPerToken func(model string) length.Ratio
	// BaseOf returns the base model of a LoRA adapter, "" for an unknown name. It is called
	// for names in bodies that are not a model's, from any goroutine. nil knows no adapter.
	BaseOf func(adapter string) string
	// MaxBody is the largest body that is read, in bytes; a larger one that must be read is
	// rejected with 413. Default length.BodyLimit.
	MaxBody int
	// Deadline bounds one request's stream from its first message to its last, including the
	// upload of the body. Default processing.DefaultDeadline.
	Deadline time.Duration
	// Health, if set, is set to SERVING when the service is registered.
	Health *health.Server
	// Metrics, if set, gets the service's metrics.
	Metrics prometheus.Registerer
	// Logger gets configuration errors of the filter; nil discards them.
	Logger *slog.Logger
}

// Model is a model and the hosts that serve it.
type Model struct {
	// Name in the body of requests; 1 to length.MaxModel bytes without
	// control characters, and unique.
	Name string
	// Hosts are host names that select this model and no other, as in resources.Model: their
	// requests need no look at the body to know the model.
	Hosts []string
}

func (c *Config) validate() error {
	switch {
	case len(c.Models) == 0:
		return errors.New("length: Models is empty; name at least one model")
	case c.MaxBody < 0:
		return fmt.Errorf("length: MaxBody is %d; use a positive number of bytes, or 0 for %d", c.MaxBody, length.BodyLimit)
	case c.Deadline < 0:
		return fmt.Errorf("length: Deadline is %s; use a positive duration, or 0 for %s", c.Deadline, processing.DefaultDeadline)
	}
	if c.BytesPerToken == nil {
		c.BytesPerToken = func(string) length.Ratio { return length.DefaultRatio }
	}
	if c.MaxBody == 0 {
		c.MaxBody = length.BodyLimit
	}
	if c.Deadline == 0 {
		c.Deadline = processing.DefaultDeadline
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server implements the service. Its methods may be called from any goroutine.
type Server struct {
	extproc.UnimplementedExternalProcessorServer

	config  Config             // fixed after New
	models  *resources.Routing // fixed after New
	metrics metrics
	warned  sync.Once // logs a filter with an unsupported mode once
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
	if err := s.metrics.register(c.Metrics); err != nil {
		return nil, fmt.Errorf("length: register metrics: %w", err)
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

// Options returns the gRPC server options needed for bodies of MaxBody.
func (s *Server) Options() []grpc.ServerOption { return processing.Options(s.config.MaxBody) }

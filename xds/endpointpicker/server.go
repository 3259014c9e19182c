// Package endpointpicker serves the Endpoint Picker Protocol (EPP) of the Gateway API Inference
// Extension: a gateway that conforms to it sends requests to the stages of a fleet without
// having Cascade's routes.
//
// A Server is Envoy's external processor (envoy.service.ext_proc.v3). For each request it
// estimates the prompt length, chooses replicas by policies/balance.Picker, and returns their
// addresses in order, in a header and in dynamic metadata. It gets plans, endpoints and
// ratios as the embedded proxy does, by Update with the snapshots of a routing.Client, and
// keeps the last ones while the control plane is away. It changes no body and no response.
//
// Invariants: a request is never sent on without a choice, because its own header would then
// decide where it goes; so every failure is a response to the client, and the stream is not
// closed before. An address outside the gateway's subset hint is never chosen.
//
// The bodies of requests whose length or model the headers do not say are held until they
// are complete, in bounded memory; all others pass as they come.
package endpointpicker

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// DefaultBodyMemory is Config.BodyMemory if that is 0.
const DefaultBodyMemory = 512 << 20

// The names under which the health service answers. The protocol asks for the last three,
// gateways' and charts' probes for the second.
const (
	healthOverall   = ""
	healthExtension = "inference-extension"
	healthReady     = "readiness"
	healthAlive     = "liveness"
)

// Config sets the bounds of a Server. The zero value is valid.
type Config struct {
	// Model is the model of the gateway's pool, whatever a request says. "" means the model of
	// the request's host name, the only one of the fleet, or the one that the body names.
	Model string
	// Fallbacks is how many addresses follow the first one, for gateways that try them in
	// order: 0 to balance.MaxAddresses−1. 0 is right for gateways that can read one address
	// only, such as Envoy with an ORIGINAL_DST cluster.
	Fallbacks int
	// MaxBody is the largest body that is held, in bytes; a larger one is refused with 413.
	// Default length.BodyLimit.
	MaxBody int
	// BodyMemory bounds the memory of all held bodies together, in bytes; beyond it requests are
	// refused with 429. Default DefaultBodyMemory.
	BodyMemory int64
	// Deadline bounds the time until a held body is complete; a later one is refused with 408.
	// Default processing.DefaultDeadline.
	Deadline time.Duration
	// ConformanceTest obeys the headers by which the conformance suite of the Inference Extension
	// chooses endpoints. It is not for production: clients would choose their endpoints.
	ConformanceTest bool
	// Random returns uniform numbers, from any goroutine; nil uses math/rand/v2.
	Random func() uint64
	// Health, if set, says whether the picker serves; see Server.Update.
	Health *health.Server
	// Metrics, if set, gets the picker's metrics.
	Metrics prometheus.Registerer
	// Logger gets plans that cannot be used, and gateways whose filter is not configured for the
	// protocol; nil discards them.
	Logger *slog.Logger
}

func (c *Config) validate() error {
	if c.MaxBody < 0 || c.BodyMemory < 0 || c.Deadline < 0 {
		return errors.New("endpoint picker: MaxBody, BodyMemory and Deadline must not be negative; 0 is the default")
	}
	if c.Fallbacks < 0 || c.Fallbacks >= balance.MaxAddresses {
		return fmt.Errorf("endpoint picker: Fallbacks is %d; use 0 to %d", c.Fallbacks, balance.MaxAddresses-1)
	}
	if c.MaxBody == 0 {
		c.MaxBody = length.BodyLimit
	}
	if c.BodyMemory == 0 {
		c.BodyMemory = DefaultBodyMemory
	}
	if c.Deadline == 0 {
		c.Deadline = processing.DefaultDeadline
	}
	if c.Random == nil {
		c.Random = rand.Uint64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server implements the service. Its methods may be called from any goroutine, Update from one
// at a time.
type Server struct {
	extproc.UnimplementedExternalProcessorServer

	config  Config             // fixed after New
	budget  *httpserver.Budget // of held bodies
	metrics metrics
	view    atomic.Pointer[View]
	warned  sync.Once // logs a gateway with an unsupported mode once
}

var (
	_ extproc.ExternalProcessorServer = (*Server)(nil)
	_ routing.Watcher                 = (*Server)(nil)
)

// New returns a Server that knows no endpoint yet. It starts nothing.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Server{config: c, budget: httpserver.NewBudget(c.BodyMemory)}
	s.metrics = newMetrics(s.budget)
	s.view.Store(new(View))
	if err := s.metrics.register(c.Metrics); err != nil {
		return nil, fmt.Errorf("endpoint picker: register metrics: %w", err)
	}
	if c.Health != nil {
		c.Health.SetServingStatus(healthAlive, healthpb.HealthCheckResponse_SERVING)
	}
	s.setReady(false)
	return s, nil
}

// Register adds the service to a gRPC server that was made with Options.
func (s *Server) Register(r grpc.ServiceRegistrar) { extproc.RegisterExternalProcessorServer(r, s) }

// Options returns the gRPC server options that the service needs.
func (s *Server) Options() []grpc.ServerOption {
	return processing.Options(s.config.MaxBody)
}

// Process handles one request of a gateway and the response to it.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	x := &exchange{server: s, view: s.view.Load()}
	defer x.release()
	return processing.Serve(stream, s.config.Deadline, x)
}

// Update makes new requests use the plan of a snapshot. The health service says that the
// picker is ready once it has the stages of its Model or, without one, of any.
func (s *Server) Update(snapshot *routing.Snapshot) {
	if snapshot.Plan() == nil {
		return
	}
	s.view.Store(NewView(snapshot.Routing))
	s.setReady(s.Ready())
}

// Ready reports whether the picker knows its stages or its pool, which may be empty.
func (s *Server) Ready() bool {
	v := s.view.Load()
	if s.config.Model != "" && v.pool == nil {
		return v.models[s.config.Model] != nil
	}
	return len(v.models) > 0
}

func (s *Server) setReady(ready bool) {
	if s.config.Health == nil {
		return
	}
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range [...]string{healthOverall, healthExtension, healthReady, extproc.ExternalProcessor_ServiceDesc.ServiceName} {
		s.config.Health.SetServingStatus(name, status)
	}
}

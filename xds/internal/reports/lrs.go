package reports

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Bounds of a report stream.
const (
	// reportRate and reportBurst bound the messages of one stream per second; the
	// service asks a node for one per interval.
	lrsReportRate = 20
	reportBurst   = 40
	// maxStreams bounds the streams under one node id.
	maxStreams = 64
)

// Config is the configuration of a Service.
type Config struct {
	// Book receives the reports. Required.
	Book *Book
	// Admit returns an error, which is a gRPC status, for a peer that may not report as
	// this node. nil admits every peer; it suits a server whose interceptors bind nodes
	// to certificates. The context is that of the stream.
	Admit  func(ctx context.Context, node string) error
	Logger *slog.Logger // nil discards
}

// LRSService is the gRPC service.
type LRSService struct {
	cfg     Config
	log     *slog.Logger
	done    chan struct{} // closed when Run has returned
	counter Counter
}

var _ loadstatsv3.LoadReportingServiceServer = (*LRSService)(nil)

// NewLRS checks the configuration and starts nothing.
func NewLRS(cfg Config) (*LRSService, error) {
	if cfg.Book == nil {
		return nil, errors.New("lrs: Book is required")
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	refusals := []codes.Code{codes.InvalidArgument, codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated, codes.Internal}
	return &LRSService{
		cfg: cfg, log: log, done: make(chan struct{}),
		counter: Counter{Log: log, Message: "proxy's load report refused", Codes: refusals},
	}, nil
}

// Run removes disconnected nodes until ctx ends; then it ends all streams and returns
// nil. It is called once.
func (s *LRSService) Run(ctx context.Context) error {
	defer close(s.done)
	tick := time.NewTicker(s.cfg.Book.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			s.cfg.Book.expire(now)
		}
	}
}

// Reports returns how many messages were accepted, and how many streams were refused.
func (s *LRSService) Reports() (accepted, refused uint64) { return s.counter.Counts() }

// StreamLoadStats implements the service: it asks a node to report all its clusters by
// endpoint, and applies its reports.
func (s *LRSService) StreamLoadStats(stream loadstatsv3.LoadReportingService_StreamLoadStatsServer) error {
	return s.counter.End(s.serve(stream))
}

func (s *LRSService) serve(stream loadstatsv3.LoadReportingService_StreamLoadStatsServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	r := Receive(ctx, func() (*message, error) {
		m := new(message)
		return m, stream.RecvMsg(m)
	})
	first, err := r.Next(ctx, s.done)
	if err != nil {
		return ignoreEOF(err)
	}
	node := first.node.GetId()
	if node == "" {
		return status.Error(codes.InvalidArgument, "load report: the first message must name its node")
	}
	if s.cfg.Admit != nil {
		if err := s.cfg.Admit(ctx, node); err != nil {
			return err
		}
	}
	if s.cfg.Book.streams(node) >= maxStreams {
		return status.Errorf(codes.ResourceExhausted, "load report: node %.80q has more than %d streams: give every proxy an id of its own", node, maxStreams)
	}
	number := s.cfg.Book.open(time.Now(), node, first.node.GetCluster())
	defer func() { s.cfg.Book.close(time.Now(), number) }()
	s.log.Debug("node began to report its load", "node", node)
	err = stream.Send(&loadstatsv3.LoadStatsResponse{
		SendAllClusters: true, ReportEndpointGranularity: true,
		LoadReportingInterval: durationpb.New(s.cfg.Book.interval),
	})
	if err != nil {
		return err
	}
	budget := NewBucket(time.Now(), lrsReportRate, reportBurst)
	for {
		f, err := r.Next(ctx, s.done)
		if err != nil {
			return ignoreEOF(err)
		}
		now := time.Now()
		switch {
		case f.node.GetId() != "" && f.node.GetId() != node:
			return status.Errorf(codes.InvalidArgument, "load report: the stream of node %.80q cannot report for %.80q", node, f.node.GetId())
		case !budget.Spend(now):
			return status.Errorf(codes.ResourceExhausted, "load report: more than %d messages a second", lrsReportRate)
		}
		if !s.cfg.Book.report(now, number, f.clusters, f.problems...) {
			return status.Errorf(codes.ResourceExhausted, "load report: node %.80q reports more than %d MiB of clusters and endpoints", node, maxNodeBytes>>20)
		}
		s.counter.Accept()
	}
}

// ignoreEOF returns nil for the orderly end of a stream.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

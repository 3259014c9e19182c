package length

import (
	"context"
	"fmt"
	"strings"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing/processingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig returns a configuration of two models with a host each, and a ratio of one byte a
// token, so that sizes equal tokens.
func testConfig() Config {
	return Config{
		Models: []Model{
			{Name: "m", Hosts: []string{"m.test"}},
			{Name: "n/2", Hosts: []string{"n.test"}},
		},
		BytesPerToken: func(model string) length.Ratio {
			if model == "n/2" {
				return 2000
			}
			return 1000
		},
	}
}

// serve starts a server over an in-memory connection and returns a client.
func serve(t *testing.T, c Config) (extproc.ExternalProcessorClient, *grpc.ClientConn) {
	t.Helper()
	s := testkit.Must(New(c))
	g := grpc.NewServer(s.Options()...)
	s.Register(g)
	if c.Health != nil {
		healthpb.RegisterHealthServer(g, c.Health)
	}
	conn, _ := memgrpc.Serve(t, g)
	return extproc.NewExternalProcessorClient(conn), conn
}

// talk sends all messages at once, duplicate and surplus ones included, and returns the
// responses up to the end of the stream, which it describes too.
func talk(t *testing.T, client extproc.ExternalProcessorClient, messages ...*extproc.ProcessingRequest) []string {
	t.Helper()
	return processingtest.Talk(t, client, false, processingtest.Describe, messages...)
}

func post(authority string, pairs ...string) *extproc.ProcessingRequest {
	return processingtest.Headers(false, append([]string{":method", "POST", ":path", "/v1/completions", ":authority", authority}, pairs...)...)
}

// parseMessage returns a message of a scenario.
func parseMessage(words []string) (*extproc.ProcessingRequest, error) {
	var args struct {
		Mode, Model string
		Prompt      int
		More        bool
	}
	var pairs, options []string
	text := ""
	for _, word := range words[1:] {
		name, value, found := strings.Cut(word, "=")
		switch {
		case name == "content-length":
			pairs = []string{name, value}
		case found && !strings.HasPrefix(word, "{") || word == "more":
			options = append(options, word)
		default:
			text = word
		}
	}
	if err := testkit.SetFields(&args, options); err != nil {
		return nil, err
	}
	switch words[0] {
	case "post":
		r := post(text, pairs...)
		r.ProtocolConfig.RequestBodyMode = filterv3.ProcessingMode_BodySendMode(filterv3.ProcessingMode_BodySendMode_value[args.Mode])
		return r, nil
	case "get":
		return processingtest.Headers(true, append([]string{":method", "GET", ":authority", text}, pairs...)...), nil
	case "body":
		if args.Prompt > 0 {
			if args.Model != "" {
				args.Model = `,"model":"` + args.Model + `"`
			}
			text = `{"prompt":"` + strings.Repeat("x", args.Prompt) + `"` + args.Model + `}`
		}
		return processingtest.Body(text, !args.More), nil
	}
	r, ok := map[string]*extproc.ProcessingRequest{
		"empty":               {},
		"headers-without-map": {Request: &extproc.ProcessingRequest_RequestHeaders{}},
		"trailers":            {Request: &extproc.ProcessingRequest_RequestTrailers{}},
		"response-headers":    {Request: &extproc.ProcessingRequest_ResponseHeaders{}},
		"response-body":       {Request: &extproc.ProcessingRequest_ResponseBody{}},
		"response-trailers":   {Request: &extproc.ProcessingRequest_ResponseTrailers{}},
	}[words[0]]
	if !ok {
		return nil, fmt.Errorf("unknown message %q", words[0])
	}
	return r, nil
}

// run processes one fake stream as gRPC would: the stream's context ends when it
// returns.
func run(t *testing.T, s *Server, ctx context.Context, prepare func(*processingtest.Stream)) (*processingtest.Stream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &processingtest.Stream{Ctx: ctx, Requests: make(chan *extproc.ProcessingRequest, 4)}
	prepare(f)
	err := s.Process(f)
	return f, err
}

package length

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies/length"
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

// headers returns Envoy's first message, with pairs of name and value.
func headers(end bool, pairs ...string) *extproc.ProcessingRequest {
	h := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extproc.ProcessingRequest{
		Request:        &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: h, EndOfStream: end}},
		ProtocolConfig: &extproc.ProtocolConfiguration{},
	}
}

func body(b string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

// mutation describes a response in one line, sets before removes.
func mutation(c *extproc.CommonResponse) string {
	var out []string
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD || h.Header.Value != "" {
			out = append(out, "NOT OVERWRITTEN BY raw_value:")
		}
		out = append(out, h.Header.Key+"="+string(h.Header.RawValue))
	}
	for _, h := range c.GetHeaderMutation().GetRemoveHeaders() {
		out = append(out, "-"+h)
	}
	if c.GetClearRouteCache() {
		out = append(out, "reroute")
	}
	return strings.Join(out, " ")
}

// describe describes a response in one line.
func describe(r *extproc.ProcessingResponse) string {
	switch m := r.GetResponse().(type) {
	case *extproc.ProcessingResponse_RequestHeaders:
		if o := r.GetModeOverride(); o != nil {
			return strings.TrimSpace(fmt.Sprintf("headers: body %s %s", o.RequestBodyMode, mutation(m.RequestHeaders.GetResponse())))
		}
		return "headers: " + mutation(m.RequestHeaders.GetResponse())
	case *extproc.ProcessingResponse_RequestBody:
		return "body: " + mutation(m.RequestBody.GetResponse())
	case *extproc.ProcessingResponse_ImmediateResponse:
		return fmt.Sprintf("%d: %s", m.ImmediateResponse.GetStatus().GetCode(), m.ImmediateResponse.GetBody())
	case *extproc.ProcessingResponse_ResponseHeaders:
		return strings.TrimSpace("response headers: " + mutation(m.ResponseHeaders.GetResponse()))
	default:
		return strings.TrimPrefix(fmt.Sprintf("%T", m), "*ext_procv3.ProcessingResponse_")
	}
}

// talk sends all messages at once, duplicate and surplus ones included, and returns the
// responses up to the end of the stream, which it describes too.
func talk(t *testing.T, client extproc.ExternalProcessorClient, messages ...*extproc.ProcessingRequest) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := client.Process(ctx)
	testkit.NoError(t, err)
	for _, m := range messages {
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	var out []string
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return append(out, "closed")
		}
		if err != nil {
			return append(out, status.Code(err).String())
		}
		out = append(out, describe(r))
	}
}

func post(authority string, pairs ...string) *extproc.ProcessingRequest {
	return headers(false, append([]string{":method", "POST", ":path", "/v1/completions", ":authority", authority}, pairs...)...)
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
		return headers(true, append([]string{":method", "GET", ":authority", text}, pairs...)...), nil
	case "body":
		if args.Prompt > 0 {
			if args.Model != "" {
				args.Model = `,"model":"` + args.Model + `"`
			}
			text = `{"prompt":"` + strings.Repeat("x", args.Prompt) + `"` + args.Model + `}`
		}
		return body(text, !args.More), nil
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

// fakeStream is the server end of a stream, in memory.
type fakeStream struct {
	grpc.ServerStream
	ctx  context.Context
	recv chan *extproc.ProcessingRequest
	sent []*extproc.ProcessingResponse
	fail error // the error of Send
}

func (f *fakeStream) Context() context.Context { return f.ctx }

func (f *fakeStream) Send(r *extproc.ProcessingResponse) error {
	f.sent = append(f.sent, r)
	return f.fail
}

func (f *fakeStream) Recv() (*extproc.ProcessingRequest, error) {
	select {
	case r, ok := <-f.recv:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-f.ctx.Done():
		return nil, status.FromContextError(f.ctx.Err()).Err()
	}
}

// run processes one fake stream as gRPC would: the stream's context ends when it
// returns.
func run(t *testing.T, s *Server, ctx context.Context, prepare func(*fakeStream)) (*fakeStream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &fakeStream{ctx: ctx, recv: make(chan *extproc.ProcessingRequest, 4)}
	prepare(f)
	err := s.Process(f)
	return f, err
}

package length

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies/length"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig returns a configuration of two models with a host each, one host that both
// share, and a ratio of one byte a token, so that sizes equal tokens.
func testConfig() Config {
	return Config{
		Models: []Model{
			{Name: "m", Hosts: []string{"m.test", "both.test"}},
			{Name: "n/2", Hosts: []string{"n.test", "both.test"}},
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
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(s.Options()...)
	s.Register(g)
	if c.Health != nil {
		healthpb.RegisterHealthServer(g, c.Health)
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		wg.Wait()
	})
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
	case *extproc.ProcessingResponse_RequestTrailers:
		return "trailers"
	case *extproc.ProcessingResponse_ResponseHeaders:
		return "response headers: " + mutation(m.ResponseHeaders.GetResponse())
	case *extproc.ProcessingResponse_ResponseBody:
		return "response body"
	case *extproc.ProcessingResponse_ResponseTrailers:
		return "response trailers"
	}
	return "nothing"
}

// talk sends all messages at once, duplicate and surplus ones included, and returns the
// responses up to the end of the stream, which it describes too.
func talk(t *testing.T, client extproc.ExternalProcessorClient, messages ...*extproc.ProcessingRequest) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
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

func withMode(r *extproc.ProcessingRequest, mode filterv3.ProcessingMode_BodySendMode) *extproc.ProcessingRequest {
	r.ProtocolConfig.RequestBodyMode = mode
	return r
}

func TestProcess(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	c := testConfig()
	c.Metrics = reg
	c.MaxBody = 100_000
	client, _ := serve(t, c)
	const ask = "headers: body BUFFERED"
	tooLarge := `413: {"error":{"message":"The request body is larger than 100000 bytes.","type":"invalid_request_error","param":null,"code":"request_too_large"}}`
	prompt := func(n int, more string) string { return `{"prompt":"` + strings.Repeat("x", n) + `"` + more + `}` }

	for _, x := range []struct {
		name string
		send []*extproc.ProcessingRequest
		want []string
	}{
		{"length and host suffice", []*extproc.ProcessingRequest{post("m.test", "content-length", "1234")},
			[]string{"headers: x-cascade-tokens=1234 x-gateway-model-name=m reroute", "closed"}},
		{"the model's own ratio", []*extproc.ProcessingRequest{post("n.test:8080", "content-length", "1235")},
			[]string{"headers: x-cascade-tokens=617 x-gateway-model-name=n/2 reroute", "closed"}},
		{"a length over MaxBody needs no body", []*extproc.ProcessingRequest{post("m.test", "content-length", "9223372036854775807")},
			[]string{"headers: x-cascade-tokens=9223372036854775806 x-gateway-model-name=m reroute", "closed"}},
		{"no length", []*extproc.ProcessingRequest{post("m.test"), body(prompt(77, ""), true)},
			[]string{ask, "body: x-cascade-tokens=77 x-gateway-model-name=m reroute", "closed"}},
		{"length is no number", []*extproc.ProcessingRequest{post("m.test", "content-length", "+5"), body(prompt(77, ""), true)},
			[]string{ask, "body: x-cascade-tokens=77 x-gateway-model-name=m reroute", "closed"}},
		{"the host's model wins", []*extproc.ProcessingRequest{post("m.test"), body(prompt(77, `,"model":"n/2"`), true)},
			[]string{ask, "body: x-cascade-tokens=77 x-gateway-model-name=m reroute", "closed"}},
		{"shared host", []*extproc.ProcessingRequest{post("both.test", "content-length", "999"), body(prompt(77, `,"model":"n\/2"`), true)},
			[]string{ask, "body: x-cascade-tokens=38 x-gateway-model-name=n/2 reroute", "closed"}},
		{"unlisted host", []*extproc.ProcessingRequest{post("else.test"), body(prompt(77, `,"model":"m"`), true)},
			[]string{ask, "body: x-cascade-tokens=77 x-gateway-model-name=m reroute", "closed"}},
		{"unknown model", []*extproc.ProcessingRequest{post("both.test"), body(prompt(77, `,"model":"q"`), true)},
			[]string{ask, "body: x-cascade-tokens=77 -x-gateway-model-name reroute", "closed"}},
		{"malformed: the size", []*extproc.ProcessingRequest{post("both.test"), body(`{"model":"m","prompt":"x`, true)},
			[]string{ask, "body: x-cascade-tokens=24 x-gateway-model-name=m reroute", "closed"}},
		{"malformed before the model", []*extproc.ProcessingRequest{post("both.test"), body(`not JSON`, true)},
			[]string{ask, "body: x-cascade-tokens=8 -x-gateway-model-name reroute", "closed"}},
		{"token ids are exact", []*extproc.ProcessingRequest{post("n.test"), body(`{"prompt":[1,2,3]}`, true)},
			[]string{ask, "body: x-cascade-tokens=3 x-gateway-model-name=n/2 reroute", "closed"}},
		{"empty body message", []*extproc.ProcessingRequest{post("m.test"), body("", true)},
			[]string{ask, "body: x-cascade-tokens=0 x-gateway-model-name=m reroute", "closed"}},
		{"trailers follow", []*extproc.ProcessingRequest{post("m.test"), body(prompt(7, ""), false)},
			[]string{ask, "body: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}},
		{"the end comes twice", []*extproc.ProcessingRequest{post("m.test"), body(prompt(7, ""), true), body("", true), body("", true)},
			[]string{ask, "body: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}},
		{"configured as BUFFERED", []*extproc.ProcessingRequest{withMode(post("m.test"), filterv3.ProcessingMode_BUFFERED), body(prompt(7, ""), true)},
			[]string{ask, "body: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}},
		{"no body, known host", []*extproc.ProcessingRequest{headers(true, ":method", "GET", ":authority", "m.test")},
			[]string{"headers: x-gateway-model-name=m -x-cascade-tokens reroute", "closed"}},
		{"no body, shared host", []*extproc.ProcessingRequest{headers(true, ":method", "GET", ":authority", "both.test", "content-length", "0")},
			[]string{"headers: -x-cascade-tokens -x-gateway-model-name reroute", "closed"}},
		{"body only", []*extproc.ProcessingRequest{body(prompt(7, `,"model":"m"`), true)},
			[]string{"body: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}},
		{"length too large to read", []*extproc.ProcessingRequest{post("both.test", "content-length", "100001")},
			[]string{tooLarge, "closed"}},
		{"largest", []*extproc.ProcessingRequest{post("both.test", "content-length", "100000"), body(prompt(100_000-25, `,"model":"m"`), true)},
			[]string{ask, "body: x-cascade-tokens=99975 x-gateway-model-name=m reroute", "closed"}},
		{"body larger than allowed", []*extproc.ProcessingRequest{post("m.test"), body(prompt(100_000, ""), true)},
			[]string{ask, tooLarge, "closed"}},
		{"headers twice", []*extproc.ProcessingRequest{post("m.test"), post("m.test")}, []string{ask, "InvalidArgument"}},
		{"empty message", []*extproc.ProcessingRequest{{}}, []string{"InvalidArgument"}},
		{"no header map", []*extproc.ProcessingRequest{{Request: &extproc.ProcessingRequest_RequestHeaders{}}, body(prompt(7, `,"model":"m"`), true)},
			[]string{ask, "body: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}},
		{"streamed", []*extproc.ProcessingRequest{withMode(post("m.test"), filterv3.ProcessingMode_FULL_DUPLEX_STREAMED)}, []string{"FailedPrecondition"}},
		{"partial", []*extproc.ProcessingRequest{withMode(post("m.test"), filterv3.ProcessingMode_BUFFERED_PARTIAL)}, []string{"FailedPrecondition"}},
		{"streamed, but the headers suffice", []*extproc.ProcessingRequest{withMode(post("m.test", "content-length", "5"), filterv3.ProcessingMode_STREAMED)},
			[]string{"headers: x-cascade-tokens=5 x-gateway-model-name=m reroute", "closed"}},
		{"trailers instead of a body", []*extproc.ProcessingRequest{post("m.test"), {Request: &extproc.ProcessingRequest_RequestTrailers{}}}, []string{ask, "trailers", "closed"}},
		{"response headers", []*extproc.ProcessingRequest{{Request: &extproc.ProcessingRequest_ResponseHeaders{}}}, []string{"response headers: ", "closed"}},
		{"response body", []*extproc.ProcessingRequest{{Request: &extproc.ProcessingRequest_ResponseBody{}}}, []string{"response body", "closed"}},
		{"response trailers", []*extproc.ProcessingRequest{{Request: &extproc.ProcessingRequest_ResponseTrailers{}}}, []string{"response trailers", "closed"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if got := talk(t, client, x.send...); !slices.Equal(got, x.want) {
				t.Errorf("answers\n%q\nwant\n%q", got, x.want)
			}
		})
	}

	want := `
# HELP cascade_length_answers_total Requests that the length estimator answered, by outcome.
# TYPE cascade_length_answers_total counter
cascade_length_answers_total{outcome="body"} 12
cascade_length_answers_total{outcome="body_size"} 2
cascade_length_answers_total{outcome="headers"} 4
cascade_length_answers_total{outcome="late"} 0
cascade_length_answers_total{outcome="no_body"} 2
cascade_length_answers_total{outcome="protocol"} 4
cascade_length_answers_total{outcome="skipped"} 4
cascade_length_answers_total{outcome="too_large"} 2
cascade_length_answers_total{outcome="unknown_model"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "cascade_length_answers_total"); err != nil {
		t.Error(err)
	}
	if _, err := New(c); err == nil {
		t.Error("the metrics were registered twice")
	}
}

// TestBodyLargerThanAMessage checks that gRPC refuses such a message before it is in
// memory.
func TestBodyLargerThanAMessage(t *testing.T) {
	c := testConfig()
	c.MaxBody = 1000
	client, _ := serve(t, c)
	stream, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(post("m.test")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	stream.Send(body(strings.Repeat("x", c.MaxBody+maxHeaders), true))
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("ended with %v, want ResourceExhausted", err)
	}
}

// TestRefusalHasAStatus checks that a refusal has a status; without one, Envoy sends
// 200.
func TestRefusalHasAStatus(t *testing.T) {
	if got := rejectTooLarge(1).GetImmediateResponse().GetStatus().GetCode(); got != typev3.StatusCode_PayloadTooLarge {
		t.Errorf("status %v", got)
	}
}

func TestHealth(t *testing.T) {
	c := testConfig()
	c.Health = health.NewServer()
	_, conn := serve(t, c)
	r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "envoy.service.ext_proc.v3.ExternalProcessor"})
	if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", r.GetStatus(), err)
	}
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

func TestDeadline(t *testing.T) {
	for _, x := range []struct {
		name string
		send []*extproc.ProcessingRequest
		want int
	}{{"nothing comes", nil, 0}, {"the body does not come", []*extproc.ProcessingRequest{post("m.test")}, 1}} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testConfig()
				c.Deadline = 3 * time.Second
				s, err := New(c)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				f, err := run(t, s, context.Background(), func(f *fakeStream) {
					for _, m := range x.send {
						f.recv <- m
					}
				})
				if took := time.Since(began); err != nil || took != c.Deadline || len(f.sent) != x.want {
					t.Errorf("after %s: %d answers, %v; want a clean close after %s", took, len(f.sent), err, c.Deadline)
				}
				if n := testutil.ToFloat64(s.metrics.answers.WithLabelValues(string(late))); n != 1 {
					t.Errorf("%v late requests, want 1", n)
				}
				synctest.Wait() // the bubble would not settle if the receiver had not ended
			})
		})
	}
}

func TestStreamsThatEndEarly(t *testing.T) {
	for _, x := range []struct {
		name    string
		prepare func(*fakeStream, context.CancelFunc)
		want    codes.Code
	}{
		{"closed before anything", func(f *fakeStream, _ context.CancelFunc) { close(f.recv) }, codes.OK},
		{"closed instead of a body", func(f *fakeStream, _ context.CancelFunc) { f.recv <- post("m.test"); close(f.recv) }, codes.OK},
		{"cancelled before anything", func(_ *fakeStream, cancel context.CancelFunc) { cancel() }, codes.Canceled},
		{"cancelled while waiting", func(f *fakeStream, cancel context.CancelFunc) {
			f.recv <- post("m.test")
			time.AfterFunc(time.Second, cancel)
		}, codes.Canceled},
		{"send fails", func(f *fakeStream, _ context.CancelFunc) {
			f.fail = status.Error(codes.Unavailable, "gone")
			f.recv <- post("m.test")
		}, codes.Unavailable},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(testConfig())
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				_, err = run(t, s, ctx, func(f *fakeStream) { x.prepare(f, cancel) })
				if got := status.Code(err); got != x.want {
					t.Errorf("ended with %v, want %v", err, x.want)
				}
				if n := testutil.ToFloat64(s.metrics.streams); n != 0 {
					t.Errorf("%v streams are left", n)
				}
				synctest.Wait()
			})
		})
	}
}

// TestCancelledStreams cancels streams over a real transport between any two messages;
// goleak reports goroutines that they leave.
func TestCancelledStreams(t *testing.T) {
	c := testConfig()
	reg := prometheus.NewPedanticRegistry()
	c.Metrics = reg
	client, _ := serve(t, c)
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 > 0 {
			stream.Send(post("m.test"))
		}
		if i%3 > 1 {
			stream.Recv()
			stream.Send(body(`{"prompt":"x"}`, true))
		}
		cancel()
	}
	// The service still responds.
	got := talk(t, client, post("m.test", "content-length", "7"))
	if want := []string{"headers: x-cascade-tokens=7 x-gateway-model-name=m reroute", "closed"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// FuzzExchange passes two messages of any bytes, in any order, to one exchange: it must
// respond or refuse, and never panic.
func FuzzExchange(f *testing.F) {
	s, err := New(testConfig())
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []*extproc.ProcessingRequest{post("m.test", "content-length", "5"), post("both.test"), body(`{"prompt":"x"}`, true), {}} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, data)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		x := exchange{server: s}
		for i, data := range [][]byte{first, second} {
			var r extproc.ProcessingRequest
			if proto.Unmarshal(data, &r) != nil {
				return
			}
			answer, err := x.step(&r)
			if (answer == nil) == (err == nil) {
				t.Fatalf("message %d: answer %v and error %v", i, answer, err)
			}
			if err != nil || !x.waiting {
				return
			}
		}
	})
}

func BenchmarkProcess(b *testing.B) {
	s, err := New(testConfig())
	if err != nil {
		b.Fatal(err)
	}
	for name, messages := range map[string][]*extproc.ProcessingRequest{
		"headers": {post("m.test", "content-length", "1234")},
		"body":    {post("m.test"), body(`{"prompt":"`+strings.Repeat("x", 220<<10)+`"}`, true)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithCancel(context.Background())
				f := &fakeStream{ctx: ctx, recv: make(chan *extproc.ProcessingRequest, len(messages))}
				for _, m := range messages {
					f.recv <- m
				}
				if err := s.Process(f); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
		})
	}
}

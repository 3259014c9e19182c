package length

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
	"github.com/cascadeinfer/cascade/xds/internal/processing/processingtest"
)

// TestScenarios runs testdata/process.txt (package datadriven, see
// testkit.TestScenarios): the messages of one stream, one in each line, and the
// answers.
//
//	post HOST [content-length=N] [mode=MODE]   the headers of a request with a body
//	get HOST [content-length=N]                the headers of a request without one
//	body [TEXT] [prompt=N [model=M]] [more]    a body, or one with a prompt of N bytes;
//	                                           with more, trailers follow
//	empty, headers-without-map, trailers, response-headers, response-body,
//	response-trailers                          these messages
//	send                                       sends the messages so far
//	metrics                                    prints the outcomes of all streams
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player {
		registry := prometheus.NewPedanticRegistry()
		c := testConfig()
		c.Metrics, c.MaxBody = registry, 100_000
		client, _ := serve(t, c)
		if _, err := New(c); err == nil {
			t.Error("the metrics were registered twice")
		}
		var messages []*extproc.ProcessingRequest
		return func(words []string) (out []string, err error) {
			switch words[0] {
			case "send":
				out = talk(t, client, messages...)
				messages = nil
			case "metrics":
				families, err := registry.Gather()
				for _, f := range families {
					if f.GetName() == "cascade_length_answers_total" {
						for _, m := range f.GetMetric() {
							out = append(out, fmt.Sprintf("%s %v", m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()))
						}
					}
				}
				return out, err
			default:
				m, err := parseMessage(words)
				messages = append(messages, m)
				return nil, err
			}
			return out, nil
		}
	})
}

// TestBodyLargerThanAMessage checks that gRPC refuses such a message before it is in
// memory.
func TestBodyLargerThanAMessage(t *testing.T) {
	c := testConfig()
	c.MaxBody = 1000
	client, _ := serve(t, c)
	stream, err := client.Process(t.Context())
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(post("m.test")))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	stream.Send(processingtest.Body(strings.Repeat("x", c.MaxBody+processing.MaxHeaders), true))
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("ended with %v, want ResourceExhausted", err)
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
				s := testkit.Must(New(c))
				began := time.Now()
				f, err := run(t, s, context.Background(), func(f *processingtest.Stream) {
					for _, m := range x.send {
						f.Requests <- m
					}
				})
				if took := time.Since(began); err != nil || took != c.Deadline || len(f.Sent) != x.want {
					t.Errorf("after %s: %d answers, %v; want a clean close after %s", took, len(f.Sent), err, c.Deadline)
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
		prepare func(*processingtest.Stream, context.CancelFunc)
		want    codes.Code
	}{
		{"closed before anything", func(f *processingtest.Stream, _ context.CancelFunc) { close(f.Requests) }, codes.OK},
		{"closed instead of a body", func(f *processingtest.Stream, _ context.CancelFunc) { f.Requests <- post("m.test"); close(f.Requests) }, codes.OK},
		{"cancelled before anything", func(_ *processingtest.Stream, cancel context.CancelFunc) { cancel() }, codes.Canceled},
		{"cancelled while waiting", func(f *processingtest.Stream, cancel context.CancelFunc) {
			f.Requests <- post("m.test")
			time.AfterFunc(time.Second, cancel)
		}, codes.Canceled},
		{"send fails", func(f *processingtest.Stream, _ context.CancelFunc) {
			f.Fail = status.Error(codes.Unavailable, "gone")
			f.Requests <- post("m.test")
		}, codes.Unavailable},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(testConfig())
				testkit.NoError(t, err)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				_, err = run(t, s, ctx, func(f *processingtest.Stream) { x.prepare(f, cancel) })
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

// FuzzExchange passes two messages of any bytes, in any order, to one exchange: it must
// respond or refuse, and never panic.
func FuzzExchange(f *testing.F) {
	s := testkit.Must(New(testConfig()))
	for _, m := range []*extproc.ProcessingRequest{post("m.test", "content-length", "5"), post("both.test"), processingtest.Body(`{"prompt":"x"}`, true), {}} {
		data := testkit.Must(proto.Marshal(m))
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

package collector

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	// deadline bounds every wait of the test.
	deadline = 60 * time.Second
)

// TestOneTrace runs a fleet, drains each replica in turn while a client reads a stream, and
// looks at what the collector has received.
func TestOneTrace(t *testing.T) {
	endpoint, spans := startReceiver(t)
	fleet := startFleet(t, endpoint)
	answered := make(chan error, 1)
	go func() { answered <- fleet.readStream() }()
	for _, replica := range []string{"r0", "r1"} { // one of them has the stream
		fleet.waitForRunning(t)
		fleet.order(t, "drain", replica)
		fleet.order(t, "undrain", replica)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	fleet.stop(t) // exports the last spans

	found := map[string][]ptrace.Span{} // of the client's trace, by name
	ids := map[string]bool{clientSpan: true}
	for _, batch := range spans.AllTraces() {
		for _, resource := range batch.ResourceSpans().All() {
			if service, ok := resource.Resource().Attributes().Get("service.name"); !ok || service.Str() != "cascade" {
				t.Errorf("a batch of service %v", service)
			}
			for _, scope := range resource.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					if s.TraceID().String() == clientTrace {
						found[s.Name()] = append(found[s.Name()], s)
						ids[s.SpanID().String()] = true
					}
				}
			}
		}
	}
	for name, want := range map[string]int{"proxy POST": 1, "POST /v1/completions": 2, "text_completion llama": 2, "migration.source": 1, "migration.commit": 1} {
		if len(found[name]) < want {
			t.Errorf("%d spans %q, want %d or more; there are %s", len(found[name]), name, want, namesOf(found))
		}
	}
	for name, all := range found {
		for _, s := range all {
			if parent := s.ParentSpanID().String(); !ids[parent] {
				t.Errorf("span %q is below %s, which is not in the trace", name, parent)
			}
		}
	}
	tokens := int64(0)
	for _, s := range found["text_completion llama"] {
		if s.Kind() != ptrace.SpanKindClient {
			t.Errorf("an engine's call is a span of kind %v", s.Kind())
		}
		if n, ok := s.Attributes().Get("gen_ai.usage.output_tokens"); ok {
			tokens += n.Int()
		}
	}
	if tokens < streamTokens {
		t.Errorf("the engines' calls generated %d tokens, want %d or more", tokens, streamTokens)
	}
}

// namesOf lists the names of spans with their numbers.
func namesOf(found map[string][]ptrace.Span) string {
	var all []string
	for name, spans := range found {
		all = append(all, fmt.Sprintf("%d %q", len(spans), name))
	}
	return strings.Join(all, ", ")
}

// startReceiver starts the collector's receiver on loopback, and returns its URL.
func startReceiver(t *testing.T) (endpoint string, spans *consumertest.TracesSink) {
	t.Helper()
	address := freeAddress(t)
	factory, spans := otlpreceiver.NewFactory(), new(consumertest.TracesSink)
	cfg := factory.CreateDefaultConfig()
	settings := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{"grpc": map[string]any{"endpoint": address}}})
	if err := settings.Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	r, err := factory.CreateTraces(t.Context(), receivertest.NewNopSettings(factory.Type()), cfg, spans)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return "http://" + address, spans
}

// freeAddress returns a loopback address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// streamTokens is the length of the answer: long enough for two drains.
const streamTokens = 600

// fleetFile is a fleet of two replicas. The engines are slow enough that a stream outlasts
// two drains.
const fleetFile = `speed: 1
state: state
models: [{name: llama, context: 8192, profile: h200-llama-3.1-8b, kv_tokens: 65536}]
replicas:
- {id: r0, address: %s, peer: %s, engine: "http://%s"}
- {id: r1, address: %s, peer: %s, engine: "http://%s"}
control: {listen: %s, admin: %s}
proxy: {listen: %s}
`

// fleet is a running "cascade up".
type fleet struct {
	program, proxy, admin string
	process               *exec.Cmd
}

// startFleet builds cascade, and starts a fleet that exports its spans.
func startFleet(t *testing.T, endpoint string) *fleet {
	t.Helper()
	dir := t.TempDir()
	f := &fleet{program: filepath.Join(dir, "cascade"), proxy: freeAddress(t), admin: freeAddress(t)}
	build := exec.Command("go", "build", "-o", f.program, "./cmd/cascade")
	build.Dir = "../../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	file := fmt.Sprintf(fleetFile, freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t), f.admin, f.proxy)
	if err := os.WriteFile(filepath.Join(dir, "fleet.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	f.process = exec.Command(f.program, "up", "-c", "fleet.yaml", "--native")
	f.process.Dir, f.process.Stderr = dir, os.Stderr
	f.process.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_EXPORTER_OTLP_INSECURE=true")
	out, err := f.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.process.Process.Kill(); f.process.Wait() })
	ready := make(chan bool, 1)
	go func() { // the first line is printed when the fleet serves
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- line != ""
		io.Copy(io.Discard, out)
	}()
	select {
	case ok := <-ready:
		if !ok {
			t.Fatal("the fleet did not start")
		}
	case <-time.After(deadline):
		t.Fatal("the fleet was not ready in time")
	}
	return f
}

// stop ends the fleet as an operator does.
func (f *fleet) stop(t *testing.T) {
	t.Helper()
	f.process.Process.Signal(syscall.SIGTERM)
	if err := f.process.Wait(); err != nil {
		t.Errorf("cascade up: %v", err)
	}
}

// readStream asks for a stream within the client's trace and reads it to its end.
func (f *fleet) readStream() error {
	body := fmt.Sprintf(`{"model": "llama", "prompt": "Once upon a time", "max_tokens": %d, "ignore_eos": true, "stream": true}`, streamTokens)
	req, err := http.NewRequest(http.MethodPost, "http://"+f.proxy+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", "00-"+clientTrace+"-"+clientSpan+"-01")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), "[DONE]") {
		return fmt.Errorf("status %s, %d bytes: %w", resp.Status, len(answer), err)
	}
	return nil
}

// order runs a command on a replica, and waits for its effect.
func (f *fleet) order(t *testing.T, verb, replica string) {
	t.Helper()
	args := []string{"drain", replica, "--control", "http://" + f.admin, "--undo"}
	if verb == "drain" {
		args = append(args[:4], "--wait", "--timeout", deadline.String())
	}
	if out, err := exec.Command(f.program, args...).CombinedOutput(); err != nil {
		t.Fatalf("cascade %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// waitForRunning waits until both replicas take requests and one has the stream.
func (f *fleet) waitForRunning(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get("http://" + f.admin + "/status")
		if err != nil {
			continue
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil && json.Valid(text) && strings.Count(string(text), `"health": "healthy"`) == 2 && strings.Contains(string(text), `"running": 1`) {
			return
		}
	}
	t.Fatal("the stream does not run")
}

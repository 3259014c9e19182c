package contestant

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestNames checks that names are unique, that no two contestants have the same settings, and that names can be
// selected.
func TestNames(t *testing.T) {
	names, settings := map[string]bool{}, map[string]bool{}
	for _, c := range All() {
		if names[c.Name] || settings[c.Settings] {
			t.Errorf("%s, %s: is there twice", c.Name, c.Settings)
		}
		names[c.Name], settings[c.Settings] = true, true
	}
	for _, want := range []string{"cascade", "cascade-one-stage", "cascade-without-moves", "cascade-paper", "vllm-router-cache-aware", "vllm-router-power-of-two",
		"vllm-router-consistent-hash", "vllm-router-kv-aware", "sglang-router-cache-aware", "envoy-least-request"} {
		if !names[want] {
			t.Errorf("%s is missing", want)
		}
	}
	got, err := Named([]string{"envoy-least-request", "cascade"})
	if err != nil || len(got) != 2 || got[0].Name != "envoy-least-request" || got[1].Name != "cascade" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestVariants checks that the configurations of Cascade differ as their names say.
func TestVariants(t *testing.T) {
	e := Engines{Model: "m", Context: 4096, Profile: "rtxpro6000-llama-3.1-8b", Speed: 2, History: "h", Replicas: []Replica{{URL: "http://127.0.0.1:1", Blocks: "b", Events: "127.0.0.1:3", Replay: "127.0.0.1:4"}, {URL: "http://127.0.0.1:2"}}}
	plain := testkit.Must(variant{}.fleet(e))
	one := testkit.Must(variant{oneStage: true}.fleet(e))
	still := testkit.Must(variant{moves: "place"}.fleet(e))
	paper := testkit.Must(variant{preset: "paper"}.fleet(e))
	if plain.Preset != "default" || plain.Migration.Mode != "live" || plain.Models[0].History != "h" || plain.Overload.Admission != "off" || plain.Speed != 2 {
		t.Errorf("default: %+v", plain.Fleet)
	}
	if r := plain.Fleet.Replicas; len(r) != 2 || r[0].Engine != "http://127.0.0.1:1" || r[0].Blocks != "b" || r[1].Blocks != "" || r[0].ID == r[1].ID {
		t.Errorf("replicas: %+v", r)
	}
	if e := plain.Fleet.Replicas[0].KVEvents; e.Endpoint != "tcp://*:3" || e.ReplayEndpoint != "tcp://127.0.0.1:4" || plain.Fleet.Replicas[1].KVEvents.Enabled() {
		t.Errorf("KV events: %+v", plain.Fleet.Replicas)
	}
	if one.Planner.MinRequests <= plain.Planner.MinRequests || one.Models[0].History != "" || one.Migration.Mode != "live" {
		t.Errorf("one stage: %+v", one.Fleet)
	}
	if still.Migration.Mode != "place" || still.Models[0].History != "h" {
		t.Errorf("without moves: %+v", still.Fleet)
	}
	if paper.Preset != "paper" || paper.Migration.Mode != "live" {
		t.Errorf("paper: %+v", paper.Fleet)
	}
}

// TestEventSources checks the flags by which kv_aware finds the engines' events: it asks engines itself if nothing
// is known of theirs.
func TestEventSources(t *testing.T) {
	got := eventSources(Engines{Model: "m", Replicas: []Replica{{URL: "http://a:1", Events: "127.0.0.1:2", Replay: "127.0.0.1:3"}, {URL: "http://b:1"}}})
	want := "--kv-event-source http://a:1=tcp://127.0.0.1:2 --kv-event-replay-source http://a:1=tcp://127.0.0.1:3 --kv-event-block-size 16 --kv-event-model m"
	if strings.Join(got, " ") != want {
		t.Errorf("%q", got)
	}
	if got := eventSources(Engines{Model: "m", Replicas: []Replica{{URL: "http://a:1"}}}); len(got) > 0 {
		t.Errorf("of an engine without events: %q", got)
	}
}

// TestStagesOf checks that a router without stages has one.
func TestStagesOf(t *testing.T) {
	if got := StagesOf(&testRouter{}, 3); len(got) != 3 || got[2] != 0 {
		t.Errorf("%v", got)
	}
}

// TestCountWorkers checks that a router is not ready with some of its workers.
func TestCountWorkers(t *testing.T) {
	for body, ok := range map[string]bool{
		`{"status":"ready","healthy_workers":2,"total_workers":2}`: true,
		`{"status":"ready","healthy_workers":1,"total_workers":1}`: false,
		`{}`: false, `ready`: false,
	} {
		if err := countWorkers([]byte(body), 2); (err == nil) != ok {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func newTestProcess(script string) *process {
	return &process{argv: []string{"/bin/sh", "-c", script}, address: "127.0.0.1:1", probe: "/", log: slog.New(slog.DiscardHandler),
		files: map[string][]byte{"config": []byte("from the file")}}
}

// TestProcessFails checks that the error of a router that exits has the end of its output, and that it has its files.
func TestProcessFails(t *testing.T) {
	err := Use(t.Context(), newTestProcess("cat {dir}/config; exit 3"), func(context.Context, string) error {
		t.Error("a process that serves nothing was used")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "from the file") {
		t.Errorf("%v", err)
	}
}

// TestProcessEnds checks that a router and what it has started end with the context, and that its files are removed.
func TestProcessEnds(t *testing.T) {
	out := t.TempDir()
	p := newTestProcess("trap 'echo yes > " + out + "/asked; exit' TERM; echo {dir} > " + out + "/dir; sleep 1000 & echo $! > " + out + "/pid; wait")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	read := func(name string) string {
		return testkit.WaitForValue(t, name+" is written", func() string {
			text, _ := os.ReadFile(out + "/" + name)
			return strings.TrimSpace(string(text))
		}, func(s string) bool { return s != "" })
	}
	pid, dir := read("pid"), read("dir")
	testkit.WaitFor(t, "its child runs", func() bool { // a shell that has just been forked ignores the signal
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		return string(name) == "sleep\n"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(out + "/asked"); err != nil {
		t.Errorf("the router was killed and not asked to end: %v", err)
	}
	testkit.WaitFor(t, "its child has ended", func() bool {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(text), ") Z ")
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s remains: %v", dir, err)
	}
}

// TestUse checks that the error of the measurement is returned, and that the router ends with it.
func TestUse(t *testing.T) {
	r := &testRouter{ended: make(chan struct{})}
	wanted := errors.New("measured nothing")
	if err := Use(t.Context(), r, func(_ context.Context, url string) error {
		if url != "url" {
			t.Errorf("url %q", url)
		}
		return wanted
	}); !errors.Is(err, wanted) {
		t.Errorf("%v", err)
	}
	select {
	case <-r.ended:
	default:
		t.Error("the router runs after Use has returned")
	}
	r = &testRouter{ended: make(chan struct{}), fails: errors.New("broken")}
	err := Use(t.Context(), r, func(ctx context.Context, _ string) error {
		<-ctx.Done() // a measurement ends with its router
		return context.Cause(ctx)
	})
	if !errors.Is(err, r.fails) || strings.Count(err.Error(), "broken") != 1 {
		t.Errorf("a router that fails: %v", err)
	}
}

// testRouter is ready at once. With fails it fails after a while.
type testRouter struct {
	ended chan struct{}
	fails error
}

func (r *testRouter) URL() string                 { return "url" }
func (r *testRouter) Ready(context.Context) error { return nil }

func (r *testRouter) Run(ctx context.Context) error {
	defer close(r.ended)
	if r.fails != nil {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		return r.fails
	}
	<-ctx.Done()
	return nil
}

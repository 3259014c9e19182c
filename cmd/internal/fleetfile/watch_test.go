package fleetfile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// patience bounds the waits for a change of a real file.
const patience = 30 * time.Second

const watched = `models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000"}
`

const second = `- {id: r1, address: "127.0.0.1:9001", peer: "127.0.0.1:9101", engine: "http://127.0.0.1:8001"}
`

// replace puts a file in place of another at once, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	testkit.NoError(t, os.WriteFile(path+"~", []byte(text), 0o600))
	testkit.NoError(t, os.Rename(path+"~", path))
}

// follow makes a follower of a file with the text; applied counts the replicas
// of each list that was handed over.
func follow(t *testing.T, text string) (f *follower, applied *[]int, refusal *error, log *testkit.Log) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	replace(t, path, text)
	in, err := wiring.Load(path)
	testkit.NoError(t, err)
	applied, refusal, log = new([]int), new(error), new(testkit.Log)
	return &follower{path: path, log: slog.New(slog.NewTextHandler(log, nil)), in: in, seen: in, report: func(wiring.Fleet, []string, error) {}, apply: func(w wiring.Fleet) error {
		*applied = append(*applied, len(w.Fleet.Replicas))
		return *refusal
	}}, applied, refusal, log
}

func lines(o *testkit.Log) []string {
	text := o.String()
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// TestFollowerKeepsLastValidFile goes through good and bad contents.
func TestFollowerKeepsLastValidFile(t *testing.T) {
	f, applied, refusal, log := follow(t, watched)
	f.reload()
	if len(*applied) != 0 {
		t.Fatal("an unchanged file was applied")
	}
	replace(t, f.path, watched+"nonsense")
	f.reload()
	f.reload()
	if got := lines(log); len(*applied) != 0 || len(got) != 1 || !strings.Contains(got[0], "fleet file rejected, keeping the last valid one") {
		t.Fatalf("bad file: applied %v, log %q", *applied, got)
	}
	replace(t, f.path, watched+second)
	f.reload()
	f.reload()
	if got := lines(log); len(*applied) != 1 || (*applied)[0] != 2 || len(got) != 2 {
		t.Fatalf("good file: applied %v, log %q", *applied, got)
	}
	*refusal = errors.New("not these")
	replace(t, f.path, watched)
	f.reload()
	f.reload()
	if got := lines(log); len(*applied) != 3 || len(got) != 3 || !strings.Contains(got[2], "not these") {
		t.Fatalf("refused list: applied %v, log %q", *applied, got)
	}
	*refusal = nil
	f.reload()
	f.reload()
	if got := lines(log); len(*applied) != 4 || len(got) != 5 || !strings.Contains(got[3], "removes replicas") || !strings.Contains(got[3], "r1") {
		t.Fatalf("the same list, taken later: applied %v, log %q", *applied, got)
	}
	replace(t, f.path, "speed: 2\n"+watched)
	f.reload()
	if got := lines(log); len(got) != 7 || !strings.Contains(got[6], "need a restart") || !strings.Contains(got[6], "fields=[") {
		t.Fatalf("other changes: log %q", got)
	}
	testkit.NoError(t, os.Remove(f.path))
	f.reload()
	if got := lines(log); len(got) != 8 || !strings.Contains(got[7], "no such file") {
		t.Fatalf("no file: log %q", got)
	}
}

// TestWatchReplacedFilesAndLinks: what replaces the file is a rename, and
// in Kubernetes the link of a directory beside it.
func TestWatchReplacedFilesAndLinks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"v1": watched, "v2": watched + second} {
		testkit.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		replace(t, filepath.Join(dir, name, "fleet.yaml"), text)
	}
	link := func(to, name string) {
		t.Helper()
		testkit.NoError(t, errors.Join(os.Symlink(to, filepath.Join(dir, name+"~")), os.Rename(filepath.Join(dir, name+"~"), filepath.Join(dir, name))))
	}
	link("v1", "..data")
	link(filepath.Join("..data", "fleet.yaml"), "fleet.yaml")
	path := filepath.Join(dir, "fleet.yaml")
	in, err := wiring.Load(path)
	testkit.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	got, done := make(chan int), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, in, slog.New(slog.DiscardHandler), func(w wiring.Fleet) error {
			select {
			case got <- len(w.Fleet.Replicas):
			case <-ctx.Done():
			}
			return nil
		}, nil)
	}()
	next := func(want int) {
		t.Helper()
		select {
		case n := <-got:
			if n != want {
				t.Errorf("%d replicas, want %d", n, want)
			}
		case <-ctx.Done():
			t.Fatalf("the change to %d replicas was not seen", want)
		}
	}
	link("v2", "..data")
	next(2)
	replace(t, path, watched)
	next(1)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Watch(t.Context(), filepath.Join(dir, "nowhere", "fleet.yaml"), in, slog.New(slog.DiscardHandler), nil, nil); err == nil {
		t.Error("a directory that is not there is watched")
	}
}

// runFollower runs a test in a synctest bubble with a follower that runs.
func runFollower(t *testing.T, test func(t *testing.T, f *follower, events chan<- fsnotify.Event, applied *[]int, log *testkit.Log)) {
	synctest.Test(t, func(t *testing.T) {
		f, applied, _, log := follow(t, watched)
		ctx, stop := context.WithCancel(t.Context())
		events, done := make(chan fsnotify.Event), make(chan struct{})
		go func() {
			defer close(done)
			f.run(ctx, events, nil)
		}()
		defer func() {
			stop()
			<-done
		}()
		synctest.Wait()
		test(t, f, events, applied, log)
	})
}

// TestWatchDebounceIsBounded checks that events without a pause delay the reading for a limited
// time.
func TestWatchDebounceIsBounded(t *testing.T) {
	runFollower(t, func(t *testing.T, f *follower, events chan<- fsnotify.Event, applied *[]int, _ *testkit.Log) {
		replace(t, f.path, watched+second)
		for range debounceMax / (debounce / 2) {
			events <- fsnotify.Event{}
			time.Sleep(debounce / 2)
		}
		synctest.Wait()
		if len(*applied) != 1 || (*applied)[0] != 2 {
			t.Fatalf("a busy directory: applied %v after %v", *applied, debounceMax)
		}
	})
}

// TestWatchPolls checks that a change without an event is found by the file's size or time, and so
// is the removal of the file.
func TestWatchPolls(t *testing.T) {
	runFollower(t, func(t *testing.T, f *follower, _ chan<- fsnotify.Event, applied *[]int, log *testkit.Log) {
		replace(t, f.path, watched+second)
		time.Sleep(pollPeriod + debounce)
		synctest.Wait()
		if len(*applied) != 1 || (*applied)[0] != 2 {
			t.Fatalf("no events: applied %v", *applied)
		}
		testkit.NoError(t, os.Remove(f.path))
		time.Sleep(3 * pollPeriod)
		synctest.Wait()
		if got := lines(log); len(got) != 2 || !strings.Contains(got[1], "no such file") {
			t.Errorf("no file: log %q", got)
		}
	})
}

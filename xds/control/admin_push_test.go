package control

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestPolicyModuleLost checks that a command about a module whose bytes are
// lost or damaged says which module it is and how to restore it, and that this
// works.
func TestPolicyModuleLost(t *testing.T) {
	dir := t.TempDir()
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list, Store: store.New(testkit.Must(store.NewFile(dir))), Admitter: new(fakeAdmitter)})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch == 1 })
	module := []byte("module")
	sum := fmt.Sprintf("%x", sha256.Sum256(module))
	again := func() { t.Helper(); requireOK(t)(push(t, c, "slot=place&goal=shadow", module, "generation 1")) }
	again()
	for name, spoil := range map[string]func(string) error{
		"gone": os.Remove, "damaged": func(path string) error { return os.WriteFile(path, []byte("other"), 0o600) },
	} {
		for _, path := range testkit.Must(filepath.Glob(filepath.Join(dir, store.Modules, sum+".*"))) {
			testkit.NoError(t, spoil(path))
		}
		code, text := post(t, c, "/policies/goal?slot=place&goal=active", nil)
		if code == http.StatusOK || !strings.Contains(text, sum) || !strings.Contains(text, "push the same module and signature again") || name == "gone" && code != http.StatusConflict {
			t.Errorf("%s: %d %s", name, code, text)
		}
		again()
		requireOK(t)(post(t, c, "/policies/goal?slot=place&goal=active", nil))
		again()
	}
}

// TestPolicySlowUpload checks that a slow upload delays other pushes only while
// all upload places are taken.
func TestPolicySlowUpload(t *testing.T) {
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list, Admitter: new(fakeAdmitter)})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch == 1 })
	ends := make(chan int, maxUploads-1)
	var writers []*io.PipeWriter
	for range cap(ends) {
		r, w := io.Pipe()
		writers = append(writers, w)
		go func() {
			req := testkit.Must(http.NewRequest(http.MethodPost, "http://"+c.AdminAddr().String()+"/policies/push?slot=outlier", r))
			req.Header.Set("content-type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				ends <- 0
				return
			}
			resp.Body.Close()
			ends <- resp.StatusCode
		}()
		testkit.Must(io.WriteString(w, `{"module":"`))
	}
	testkit.WaitFor(t, "the uploads to start", func() bool { return len(c.uploads) == cap(ends) })
	requireOK(t)(push(t, c, "slot=place", []byte("module"), "generation 1"))
	requireOK(t)(post(t, c, "/policies/goal?slot=place&goal=warm", nil))
	for _, w := range writers {
		w.CloseWithError(errors.New("given up"))
		<-ends
	}
	testkit.WaitFor(t, "the uploads to end", func() bool { return len(c.uploads) == 0 && len(c.pushes) == 0 })
}

// TestUploadDeadline checks that a body which does not arrive ends with a
// timeout.
func TestUploadDeadline(t *testing.T) {
	failed := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := readWithin(w, r, 10*time.Millisecond)
		failed <- err
		writeJSON(w, statusCode(err), errorBody{err.Error()})
	}))
	defer server.Close()
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = io.WriteString(w, `{"module":"`) }()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, r))
	req.Header.Set("content-type", "application/json")
	client := server.Client()
	go func() {
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) || statusCode(err) != http.StatusRequestTimeout || !strings.Contains(err.Error(), "not received within 10ms") {
		t.Error(err)
	}
}

// TestPushAnswersChange checks that a command's answer has what the command changed, although the status was read a
// moment before, and that of a push its caveat.
func TestPushAnswersChange(t *testing.T) {
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Admitter: &fakeAdmitter{caveat: "rarely asked"}})
	f.startReports(t, c)
	for n, command := range []func() (int, string){
		func() (int, string) { return push(t, c, "slot=place&goal=shadow", []byte("module"), "generation 1") },
		func() (int, string) { return post(t, c, "/policies/goal?slot=place&goal=warm", nil) },
	} {
		c.Status()
		code, text := command()
		if want := []string{`"goal": "shadow"`, `"goal": "warm"`}[n]; code != http.StatusOK || !strings.Contains(text, want) || strings.Contains(text, "slot place: rarely asked") != (n == 0) {
			t.Errorf("%d: want %s in\n%s", code, want, text)
		}
	}
}

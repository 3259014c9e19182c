package console

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// browserFlags keep the browser from the network, from a GPU and from dialogs.
var browserFlags = []chromedp.ExecAllocatorOption{
	chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
	chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
	chromedp.Flag("disable-sync", true), chromedp.Flag("disable-extensions", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("mute-audio", true),
}

var (
	startBrowser sync.Once
	browser      context.Context // its first target is not used
	stopBrowser  = func() {}
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopBrowser()
	os.Exit(code)
}

// chromium returns the path of the browser, and skips the test without one.
func chromium(t testing.TB) string {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testkit.Skip(t, testkit.Unavailable{What: "chromium is not installed", Remedy: "run `make chromium`, or set CHROMIUM to a binary", InCI: true})
	return ""
}

// tab is one page of the browser.
type tab struct {
	testing.TB
	ctx context.Context

	mu     sync.Mutex
	errors []string // exceptions and errors that the page logged
}

// openTab opens an empty page of a size in the browser, which all tests share, until the test ends.
func openTab(t testing.TB, width, height int64) *tab {
	t.Helper()
	path := chromium(t)
	startBrowser.Do(func() {
		dir := testkit.Must(os.MkdirTemp("", "cascade-chromium-"))
		options := append([]chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.WSURLReadTimeout(2 * time.Minute)}, browserFlags...)
		allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
		browser, _ = chromedp.NewContext(allocated)
		stopBrowser = func() {
			_ = chromedp.Cancel(browser) // waits for the process
			cancel()
			for range 50 { // the browser's children write for a moment after its end
				if os.RemoveAll(dir) == nil {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		if err := chromedp.Do(browser); err != nil {
			t.Fatalf("starting %s: %v", path, err)
		}
	})
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	b := &tab{TB: t, ctx: ctx}
	testkit.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, height)))
	testkit.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if object := e.ExceptionDetails.Exception; object != nil {
				text += " " + object.Description
			}
			b.note(text)
		case *runtime.EventConsoleAPICalled:
			if e.Type == "error" || e.Type == "warning" {
				for _, a := range e.Args {
					b.note(fmt.Sprintf("%s %s", a.Value, a.Description))
				}
			}
		}
	}))
	return b
}

func (b *tab) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errors = append(b.errors, text)
}

// noErrors fails the test if the page has thrown or logged an error.
func (b *tab) noErrors() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		b.Errorf("the page has errors:\n%s", strings.Join(b.errors, "\n"))
	}
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	result(b, chromedp.Steps(actions...))
}

// result runs an action and returns its value.
func result[T any](b *tab, action chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testkit.WaitTimeout())
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	testkit.NoError(b, err)
	return v
}

// script runs statements in the page.
func (b *tab) script(text string) {
	b.Helper()
	result(b, chromedp.Evaluate[int](text+"\n;0"))
}

// set changes the value of a field, and click clicks an element.
func (b *tab) set(selector, value string) {
	b.Helper()
	b.run(chromedp.SetValue(chromedp.CSS(selector), value))
}

func (b *tab) click(selector string) {
	b.Helper()
	b.run(chromedp.Click(chromedp.CSS(selector)))
}

// open loads a page and waits until it shows a view.
func (b *tab) open(url string) {
	b.Helper()
	b.run(chromedp.Navigate(url))
	b.waitFor("the first view", `performance.getEntriesByName("cascade-view").length > 0`)
}

// value returns the value of a JavaScript expression.
func value[T any](b *tab, expression string) T {
	b.Helper()
	return result(b, chromedp.Evaluate[T](expression))
}

// waitFor waits until a JavaScript expression is true.
func (b *tab) waitFor(what, expression string) {
	b.Helper()
	end := time.Now().Add(testkit.WaitTimeout())
	for !value[bool](b, "Boolean("+expression+")") {
		if time.Now().After(end) {
			b.Fatalf("timed out waiting for %s; the page says %q", what, value[string](b, "document.body.innerText"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// text returns what an element shows.
func (b *tab) text(selector string) string {
	b.Helper()
	return value[string](b, fmt.Sprintf("document.querySelector(%q).innerText", selector))
}

// colours sets the colour scheme that the user prefers: light or dark.
func (b *tab) colours(scheme string) {
	b.Helper()
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
}

// root is the folder of the repository.
var root = filepath.Join("..", "..", "..", "..")

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// bubble is a console behind an HTTP server with the deadlines of the admin server, on pipes: all
// of it takes the virtual time of a synctest bubble.
type bubble struct {
	*Console
	t        *testing.T
	listener *testkit.PipeListener
	log      *testkit.Log
	stop     func()
}

func newBubble(t *testing.T, s Source) *bubble {
	b := &bubble{t: t, log: new(testkit.Log), listener: testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:80"))}
	var err error
	b.Console, err = New(Config{Source: s, Logger: b.log.Logger()})
	testkit.NoError(t, err)
	server := &http.Server{Handler: b.Console, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(b.listener) }()
	stop := testkit.Run(t, b.Console.Run)
	b.stop = func() {
		stop()
		synctest.Wait() // the responses have ended by themselves
		testkit.NoError(t, server.Shutdown(context.Background()))
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
	return b
}

// page is a viewer of a test.
type page struct {
	conn  net.Conn
	lines *bufio.Scanner
}

// open asks for the events, and does not read them.
func (b *bubble) open() *page {
	b.t.Helper()
	conn, err := b.listener.Dial(context.Background())
	testkit.NoError(b.t, err)
	_, err = fmt.Fprint(conn, "GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	testkit.NoError(b.t, err)
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 64<<20)
	return &page{conn, lines}
}

// next returns the name and the data of the next event; ok is false at the end.
func (p *page) next() (name, data string, ok bool) {
	for p.lines.Scan() {
		line := strings.TrimSuffix(p.lines.Text(), "\r")
		if text, is := strings.CutPrefix(line, "event: "); is {
			name = text
		}
		if text, is := strings.CutPrefix(line, "data: "); is {
			return name, text, true
		}
	}
	return "", "", false
}

// TestOneViewForAll checks that one view is computed per interval whatever the number of viewers,
// and none without a viewer; and that viewers stay beyond the deadlines of the server.
func TestOneViewForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{}
		b := newBubble(t, source)
		time.Sleep(time.Hour)
		if n := source.views.Load(); n != 0 {
			t.Errorf("%d views without a viewer", n)
		}
		const viewers, seconds = 20, 90
		received := make([]int, viewers)
		pages := make([]*page, viewers)
		for i := range pages {
			pages[i] = b.open()
			go func() {
				for {
					name, data, ok := pages[i].next()
					if !ok {
						return
					}
					var v View
					if err := json.Unmarshal([]byte(data), &v); err != nil || name != "view" {
						t.Errorf("event %q: %v", name, err)
					}
					received[i]++
				}
			}()
		}
		time.Sleep(seconds*time.Second + time.Millisecond)
		synctest.Wait()
		if n := source.views.Load(); n < seconds || n > seconds+1 {
			t.Errorf("%d views in %d s", n, seconds)
		}
		for i, n := range received {
			if n < seconds || n > seconds+1 {
				t.Errorf("viewer %d: %d events in %d s", i, n, seconds)
			}
		}
		for _, p := range pages {
			p.conn.Close()
		}
		synctest.Wait()
		if n := b.events.count(); n != 0 {
			t.Errorf("%d viewers after all have left", n)
		}
		before := source.views.Load()
		time.Sleep(time.Hour)
		if n := source.views.Load() - before; n > 1 { // the one whose interval had begun
			t.Errorf("%d views after all have left", n)
		}
		b.stop()
	})
}

// TestSlowViewer checks that a viewer that does not read is dropped after the write timeout, while
// another one gets every event, and that it never holds more than one event.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{}
		b := newBubble(t, source)
		slow, quick := b.open(), b.open()
		events := 0
		go func() {
			for {
				if _, _, ok := quick.next(); !ok {
					return
				}
				events++
			}
		}()
		time.Sleep(defaultWriteTimeout - time.Second)
		if n := b.events.count(); n != 2 {
			t.Errorf("%d viewers before the timeout", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := b.events.count(); n != 1 || b.log.Count("viewer of the console dropped") != 1 {
			t.Errorf("%d viewers after the timeout: %s", n, b.log)
		}
		if events < 5 || int64(events) != source.views.Load() {
			t.Errorf("the other viewer has %d of %d events", events, source.views.Load())
		}
		quick.conn.Close()
		slow.conn.Close()
		b.stop()
	})
}

// TestTooManyViewers checks that a viewer beyond the limit learns why it gets no events, and that
// there is room again when another one has left.
func TestTooManyViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, &fakeSource{})
		var pages []*page
		for range defaultViewers {
			p := b.open()
			pages = append(pages, p)
			if name, _, ok := p.next(); !ok || name != "view" {
				t.Fatalf("event %q", name)
			}
		}
		one := b.open()
		if name, data, _ := one.next(); name != "refused" || !strings.Contains(data, "32 viewers") {
			t.Errorf("event %q: %s", name, data)
		}
		one.conn.Close()
		pages[0].conn.Close()
		time.Sleep(time.Second)
		more := b.open()
		if name, _, _ := more.next(); name != "view" {
			t.Errorf("event %q after another one has left", name)
		}
		for _, p := range append(pages, more) {
			p.conn.Close()
		}
		b.stop()
	})
}

// TestEndOfRun checks that responses end with Run, and that a later viewer is refused.
func TestEndOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, &fakeSource{})
		p := b.open()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ok := true; ok; {
				_, _, ok = p.next()
			}
		}()
		time.Sleep(3 * time.Second)
		if n := b.events.count(); n != 1 {
			t.Fatalf("%d viewers", n)
		}
		b.stop()
		p.conn.Close()
		<-ended
		if _, err := b.events.subscribe(time.Now()); !errors.Is(err, errStopped) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestLatestEventAtOnce checks that a page that is opened again gets the latest event at once, and
// makes no more views than one per interval.
func TestLatestEventAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{}
		b := newBubble(t, source)
		begin := time.Now()
		for range 100 {
			p := b.open()
			before := time.Now()
			if _, _, ok := p.next(); !ok || time.Since(before) > 0 {
				t.Fatalf("the event came after %v", time.Since(before))
			}
			p.conn.Close()
			time.Sleep(50 * time.Millisecond)
		}
		if most := int64(time.Since(begin)/defaultInterval) + 1; source.views.Load() > most {
			t.Errorf("%d views in %v", source.views.Load(), time.Since(begin))
		}
		b.stop()
	})
}

// bigView has a status of a hundred kilobytes.
func bigView() View {
	return View{Status: strings.Repeat("status ", 15_000)}
}

// TestViewersShareMemory checks that 20 viewers of 1,000 replicas hold the bytes of few events, and
// not of one each.
func TestViewersShareMemory(t *testing.T) {
	source := &fakeSource{view: bigView}
	c := newConsole(t, source)
	event := c.render(time.Now())
	if len(event) > 400_000 {
		t.Errorf("an event of 1,000 replicas has %d bytes", len(event))
	}
	b := newBroadcast(time.Second, 32)
	viewers := make([]*viewer, 20)
	for i := range viewers {
		var err error
		viewers[i], err = b.subscribe(time.Now())
		testkit.NoError(t, err)
	}
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	for range 50 {
		b.publish(c.render(time.Now()), time.Now())
	}
	if grown := int64(live()) - int64(before); grown > int64(4*len(event)) {
		t.Errorf("20 viewers that read nothing hold %d bytes after 50 events of %d", grown, len(event))
	}
	for _, v := range viewers {
		if got := <-v.next; &got[0] != &b.latest[0] {
			t.Fatal("a viewer has bytes of its own")
		}
	}
	runtime.KeepAlive(viewers)
}

func BenchmarkRender1000(b *testing.B) {
	c := testkit.Must(New(Config{Source: &fakeSource{view: bigView}}))
	for b.Loop() {
		c.render(time.Now())
	}
}

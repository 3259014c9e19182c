package emulator

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestWire runs testdata/*.txt (package datadriven; -rewrite rewrites the expected
// output), each with a replica and a clock of its own:
//
//	POST PATH            a request and its body; prints the answer. Or GET
//	start NAME POST PATH the same in the background
//	end NAME             waits for the answer, and prints it; of a stream, its last events
//	leave NAME           its client closes the connection
//	running              prints the names of those that are not answered
//	engine context=256   replaces the replica by one with this Config
//	stop                 ends the replica, which cannot run again
//	wait 20ms
//	elapsed              prints the time since the last elapsed
//	metric NAME          prints a sample
//	pace                 prints how the replica has kept to its schedule since the last pace
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no wire scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &wirePlayer{last: time.Now(), asked: make(map[string]*asked)}
				p.start(t, Config{Context: 256})
				defer func() { p.stop() }()
				datadriven.RunTest(t, file, p.run)
			})
		})
	}
}

type wirePlayer struct {
	engine *Engine
	stop   func()
	last   time.Time // of elapsed
	pace   Pace      // the last one
	asked  map[string]*asked
}

// asked is a request in the background.
type asked struct {
	answer chan *httptest.ResponseRecorder
	leave  func()
}

func (p *wirePlayer) start(t *testing.T, c Config) {
	p.engine, p.stop = start(t, c)
	p.pace = Pace{}
	synctest.Wait()
}

// ask sends a request in the background.
func (p *wirePlayer) ask(t *testing.T, name string, r *http.Request) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &asked{make(chan *httptest.ResponseRecorder, 1), cancel}
	p.asked[name] = a
	go func() { a.answer <- serveRequest(p.engine, r.WithContext(ctx)) }()
	synctest.Wait()
}

// show returns an answer; of a stream, the number of its events and the last two.
func show(w *httptest.ResponseRecorder) string {
	head, body := fmt.Sprintf("%d %s\n", w.Code, w.Header().Get("Content-Type")), strings.TrimSpace(w.Body.String())
	if events := strings.Split(body, "\n\n"); len(events) > 5 {
		body = fmt.Sprintf("%d events, the last ones:\n%s", len(events), strings.Join(events[len(events)-2:], "\n"))
	}
	return head + body + "\n"
}

func (p *wirePlayer) run(t *testing.T, d *datadriven.TestData) string {
	words := testkit.Words(d)
	switch d.Cmd {
	case "engine":
		var c Config
		if err := testkit.SetFields(&c, words[1:]); err != nil {
			d.Fatalf(t, "%v", err)
		}
		p.stop()
		p.start(t, c)
	case "wait":
		pause, err := time.ParseDuration(words[1])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		time.Sleep(pause)
		synctest.Wait()
	case "elapsed":
		took := time.Since(p.last)
		p.last = time.Now()
		return fmt.Sprintln(took.Round(time.Microsecond))
	case "metric":
		return fmt.Sprintln(metric(t, p.engine, words[1]))
	case "pace":
		since := p.engine.Pace().Since(p.pace)
		p.pace = p.pace.Add(since)
		return fmt.Sprintf("%d iterations in %v, late %v, lateness %.3f\n", since.Iterations, since.Scheduled, since.Late, since.Lateness())
	case "stop":
		p.stop()
		if p.engine.Run(t.Context()) == nil {
			d.Fatalf(t, "it runs twice")
		}
	case "start":
		r := post(words[3], d.Input)
		r.Method = words[2]
		p.ask(t, words[1], r)
	case "end":
		return show(<-p.asked[words[1]].answer)
	case "leave":
		p.asked[words[1]].leave()
		<-p.asked[words[1]].answer
		synctest.Wait()
	case "running":
		var names []string
		for _, name := range slices.Sorted(maps.Keys(p.asked)) {
			if len(p.asked[name].answer) == 0 {
				names = append(names, name)
			}
		}
		return fmt.Sprintln(names)
	default:
		r := post(words[1], d.Input)
		r.Method = d.Cmd
		w := serveRequest(p.engine, r)
		return fmt.Sprintf("%d %s\n%s\n", w.Code, w.Header().Get("Content-Type"), strings.TrimSpace(w.Body.String()))
	}
	return ""
}

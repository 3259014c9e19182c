package emulator

import (
	"fmt"
	"path/filepath"
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
//	engine context=256   replaces the replica by one with this Config
//	wait 20ms
//	elapsed              prints the time since the last elapsed
//	metric NAME          prints a sample
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no wire scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &wirePlayer{last: time.Now()}
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
}

func (p *wirePlayer) start(t *testing.T, c Config) {
	p.engine, p.stop = start(t, c)
	synctest.Wait()
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
	default:
		r := post(words[1], d.Input)
		r.Method = d.Cmd
		w := serveRequest(p.engine, r)
		return fmt.Sprintf("%d %s\n%s\n", w.Code, w.Header().Get("Content-Type"), strings.TrimSpace(w.Body.String()))
	}
	return ""
}

package routerbench

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// player plays scenarios of a matrix. A run's requests arrive within 60 s divided by the rate, and
// its key is "inputs" until a command changes it.
type player struct {
	contestants []string
	rates       []float64
	cells       []cell
	stored      map[cell]run
	keys        map[string]string // by contestant
	again       repeat
}

func (p *player) key(c cell) string { return "inputs" + p.keys[c.Contestant] }

func arrivals(c cell) time.Duration { return time.Duration(60 / c.Rate * float64(time.Second)) }

func (p *player) remaining() []cell { return remainingCells(p.cells, p.key, p.stored, p.again) }

func (p *player) play(words []string) (out []string, err error) {
	switch words[0] {
	case "matrix": // matrix a,b 1,2 SEEDS
		p.contestants = split(words[1])
		if p.rates, err = parseRates(words[2]); err != nil {
			return nil, err
		}
		seeds, err := strconv.Atoi(words[3])
		p.cells = orderCells(p.contestants, p.rates, seeds)
		return nil, err
	case "remaining":
		for _, c := range p.remaining() {
			out = append(out, fmt.Sprint(c.Contestant, " ", c.Rate, " ", c.Seed))
		}
		return append(out, "expected "+minutes(expectedTime(p.remaining(), arrivals, p.stored))), nil
	case "run": // run N [void] [seconds] [build]: the next N runs are made
		n, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		for _, c := range p.remaining()[:n] {
			r := run{cell: c, Key: p.key(c), Build: "b1", Elapsed: arrivals(c).Seconds() + 10}
			for _, w := range words[2:] {
				switch {
				case w == "void":
					r.Result.Void = "busy"
				case strings.HasPrefix(w, "b"):
					r.Build = w
				default:
					if r.Elapsed, err = strconv.ParseFloat(w, 64); err != nil {
						return nil, err
					}
				}
			}
			p.stored[c] = r
		}
		return nil, nil
	case "change": // change CONTESTANT: its settings change
		p.keys[words[1]] += "'"
		return nil, nil
	case "again": // again void|stale BUILD
		p.again = repeat{void: words[1] == "void", stale: words[1] == "stale", build: words[2]}
		return nil, nil
	}
	return nil, fmt.Errorf("unknown command")
}

func TestMatrixScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		p := &player{stored: map[cell]run{}, keys: map[string]string{}}
		return p.play
	})
}

// TestOrderIsFair checks that every contestant has each position equally often.
func TestOrderIsFair(t *testing.T) {
	names := []string{"a", "b", "c"}
	count := map[string]int{}
	for i, c := range orderCells(names, []float64{1, 2}, 6) {
		count[fmt.Sprint(c.Contestant, i%3)]++
	}
	for _, name := range names {
		for at := range 3 {
			if n := count[fmt.Sprint(name, at)]; n != 4 {
				t.Errorf("%s is at place %d %d times, want 4", name, at, n)
			}
		}
	}
}

// TestStoreRuns writes runs and reads them back; what is no run of the cell is an error that names the file.
func TestStoreRuns(t *testing.T) {
	dir := t.TempDir()
	cells := orderCells([]string{"a", "b"}, []float64{1.5, 3}, 2)
	if got, err := readRuns(dir, cells); err != nil || len(got) != 0 {
		t.Fatalf("an empty directory: %v, %v", got, err)
	}
	r := run{cell: cells[1], Key: "k", Build: "b", Elapsed: 2.5, Result: replay.Result{Sent: 7, Void: "busy"}}
	testkit.NoError(t, writeRun(dir, r))
	got, err := readRuns(dir, cells)
	testkit.NoError(t, err)
	if back := got[cells[1]]; len(got) != 1 || back.Key != "k" || back.Build != "b" || back.elapsed() != 2500*time.Millisecond || back.Result.Sent != 7 || back.Result.Void != "busy" {
		t.Errorf("read back %+v", got)
	}
	files := map[string]bool{}
	for _, c := range cells {
		files[c.file()] = true
	}
	if len(files) != len(cells) {
		t.Errorf("%d cells share %d files", len(cells), len(files))
	}
	for name, text := range map[string]string{"half": `{"contestant": "b"`, "other": `{"contestant": "b", "rate": 1.5, "seed": 9}`} {
		testkit.NoError(t, writeFile(dir, cells[1].file(), text))
		if _, err := readRuns(dir, cells); err == nil || !strings.Contains(err.Error(), cells[1].file()) {
			t.Errorf("%s: %v, want an error that names the file", name, err)
		}
	}
}

package routerbench

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// cell is one run of the matrix.
type cell struct {
	Contestant string  `json:"contestant"`
	Rate       float64 `json:"rate"` // requests/s of engine time
	Seed       uint64  `json:"seed"`
}

// file is the name of the file for the cell's run.
func (c cell) file() string {
	return fmt.Sprintf("%s-%s-%d.json", strconv.FormatFloat(c.Rate, 'g', -1, 64), c.Contestant, c.Seed)
}

// orderCells returns the runs of a matrix in the order in which they are made. All of one seed
// come before those of the next, so that an interrupted matrix is complete for some seeds; and
// each seed begins with another contestant, so that what changes on the machine over the
// hours does not favour one of them.
func orderCells(contestants []string, rates []float64, seeds int) []cell {
	var out []cell
	for s := range seeds {
		first := s % len(contestants)
		for _, rate := range rates {
			for _, name := range slices.Concat(contestants[first:], contestants[:first]) {
				out = append(out, cell{name, rate, uint64(s + 1)})
			}
		}
	}
	return out
}

// repeat says which stored runs are made again although their inputs are the same.
type repeat struct {
	void  bool // those that are void
	stale bool // those of another build
	build string
}

// remainingCells returns the cells whose runs are missing or have other inputs than key says.
func remainingCells(cells []cell, key func(cell) string, stored map[cell]run, again repeat) []cell {
	var out []cell
	for _, c := range cells {
		r, ok := stored[c]
		if !ok || r.Key != key(c) || again.void && r.Result.Void != "" || again.stale && r.Build != again.build {
			out = append(out, c)
		}
	}
	return out
}

// usualOverhead is what a run takes besides the arrivals of its requests, before one has been
// made: the start of engines and router, and the answers after the last arrival.
const usualOverhead = 25 * time.Second

// expectedTime returns how long the runs will take: the arrivals of each, and the mean overhead
// of the stored runs of its contestant.
func expectedTime(cells []cell, arrivals func(cell) time.Duration, stored map[cell]run) time.Duration {
	sum, n := map[string]time.Duration{}, map[string]time.Duration{}
	for c, r := range stored {
		if over := r.elapsed() - arrivals(c); over > 0 {
			sum[c.Contestant] += over
			n[c.Contestant]++
		}
	}
	total := time.Duration(0)
	for _, c := range cells {
		overhead := usualOverhead
		if n[c.Contestant] > 0 {
			overhead = sum[c.Contestant] / n[c.Contestant]
		}
		total += arrivals(c) + overhead
	}
	return total
}

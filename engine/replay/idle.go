package replay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// CPUTimes is a reading of the machine's CPU times: idle (including waiting for disks), of processes of
// lowered priority (nice), and total, since boot, over all CPUs, in any unit.
type CPUTimes struct{ Idle, Niced, Total float64 }

// errNoCPU is returned if the system reports no CPU times.
var errNoCPU = errors.New("this system does not report CPU times")

// procStat reads the first line of Linux's /proc/stat (proc_stat(5)).
func procStat() (CPUTimes, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTimes{}, errNoCPU
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return parseProcStat(line)
}

// parseProcStat adds up "cpu user nice system idle iowait irq softirq steal
// guest guest_nice"; the guests are part of user and nice already.
func parseProcStat(line []byte) (CPUTimes, error) {
	cells := bytes.Fields(line)
	if len(cells) < 6 || string(cells[0]) != "cpu" {
		return CPUTimes{}, fmt.Errorf("/proc/stat begins with %.40q, not with the sum of all CPUs", line)
	}
	var t CPUTimes
	for i, cell := range cells[1:min(len(cells), 9)] {
		n, err := strconv.ParseUint(string(cell), 10, 64)
		if err != nil {
			return CPUTimes{}, fmt.Errorf("/proc/stat, cell %d: %w", i+1, err)
		}
		t.Total += float64(n)
		switch i {
		case 1:
			t.Niced = float64(n)
		case 3, 4:
			t.Idle += float64(n)
		}
	}
	return t, nil
}

// idleMeter measures the idle share over a run and in its worst second. It
// belongs to one goroutine at a time.
type idleMeter struct {
	read        func() (CPUTimes, error)
	first, last CPUTimes
	known       bool
	worst       float64 // lowest share between two samples; −1 before the second
}

func newIdleMeter(read func() (CPUTimes, error)) *idleMeter {
	m := &idleMeter{read: read, worst: -1}
	t, err := read()
	m.first, m.last, m.known = t, t, err == nil
	return m
}

// sample ends one stretch between samples.
func (m *idleMeter) sample() {
	before := m.last
	m.finish()
	if share := between(before, m.last); share >= 0 && (m.worst < 0 || share < m.worst) {
		m.worst = share
	}
}

// finish takes the last sample. The interval since the one before may be too short to count by itself.
func (m *idleMeter) finish() {
	t, err := m.read()
	if err != nil {
		m.known = false
	}
	m.last = t
}

// share returns the idle share over the run; −1 if the CPU times cannot be read.
func (m *idleMeter) share() float64 {
	if !m.known {
		return -1
	}
	return between(m.first, m.last)
}

// between returns the idle share between two readings; −1 if no time passed.
func between(a, b CPUTimes) float64 {
	if total := b.Total - a.Total; total > 0 {
		return min(max(0, (b.Idle-a.Idle)/total), 1)
	}
	return -1
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// idleTime is for how long tests may do nothing: they may wait for twice as long as they
// took without a mutant.
func idleTime(tests []test) time.Duration {
	most := 3 * time.Second
	for _, t := range tests {
		most += 2 * t.took
	}
	return most
}

// stopIdle kills a process that does nothing for a time, and reports whether it did: one
// that neither runs nor waits for a processor, however busy the machine is. It returns when
// the context ends.
func stopIdle(ctx context.Context, p *os.Process, most time.Duration) bool {
	tick := time.NewTicker(most / 8)
	defer tick.Stop()
	busy, since := time.Duration(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-tick.C:
			b := busyTime(p.Pid)
			switch {
			case b == 0 || b < busy || b-busy > now.Sub(since)/10: // unknown, a thread has ended, or busy
				busy, since = b, now
			case now.Sub(since) >= most:
				return p.Kill() == nil
			}
		}
	}
}

// busyTime returns for how long the threads of a process have run or waited for a
// processor; 0 where the system does not say.
func busyTime(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		var run, wait time.Duration
		text, _ := os.ReadFile(f)
		fmt.Sscan(string(text), &run, &wait)
		sum += run + wait
	}
	return sum
}

package mutate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// mayIdle returns for how long tests may do nothing at a stretch: three times as long as
// they did without a mutant.
func mayIdle(tests []test) time.Duration {
	longest := time.Duration(0)
	for _, t := range tests {
		longest = max(longest, t.idle)
	}
	return 3*time.Second + 3*longest
}

// watchIdle returns how long a process did nothing at a stretch, at most. That is one which
// neither runs nor waits for a processor, however busy the machine is. It kills the process
// after most. It returns when the context ends.
func watchIdle(ctx context.Context, p *os.Process, most time.Duration) (longest time.Duration) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	busy, since := time.Duration(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return longest
		case now := <-tick.C:
			b, idle := busyTime(p.Pid), now.Sub(since)
			if b == 0 || b < busy || b-busy > idle/10 { // unknown, a thread has ended, or busy
				busy, since = b, now
				continue
			}
			if longest = max(longest, idle); idle >= most {
				p.Kill()
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

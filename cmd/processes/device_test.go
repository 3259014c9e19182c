package processes

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/migrator/transfer"
)

// TestDeviceFaults is a piece of the suite of faults over pools in the memory of GPUs:
// all of it runs where the slow tests do (liveOnGPU). Without a fault all requests move
// by transport cuda; with one every text is right all the same.
func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	h := newHop(t, liveOnGPU, nil)
	for _, r := range h.replicas { // which takes a moment, in which tcp carries them
		r.migrator.await("a transport changes.*transport=shm")
	}
	h.run("no fault", step{kind: transfer.Done, to: toSource}, fault{strike: func(*hop, crossing) bool { return true }})
	by := map[string]int{}
	for _, m := range h.migrations() {
		if string(m.From) != h.target.ID { // source and target have changed places
			continue
		}
		by[m.Way+" "+m.Transport+" "+m.State]++
	}
	if len(by) != 1 || by["live cuda done"] == 0 {
		t.Errorf("moves without a fault: %v", by)
	}
	v := victims()
	for i, s := range map[int]step{0: liveSteps[2], 1: liveSteps[3]} { // source's engine at round, target's at pulled
		h.suffer(s, killed(v[i]))
	}
	h.tally()
}

// TestDeviceLacks says what is missing where there is no driver.
func TestDeviceLacks(t *testing.T) {
	t.Parallel()
	a := addresses(1)[0]
	p := startWith(t, []string{"CASCADE_TEST_LIBCUDA=libnone.so.1"}, "engine", "--device", config.MigrationOff, "--listen", a)
	<-p.gone
	q := startWith(t, []string{"CASCADE_TEST_LIBCUDA=libnone.so.1"}, "engine", "--device", "cuda", "--listen", a)
	<-q.gone
	if p.code != 1 || q.code != 1 {
		t.Errorf("codes %d and %d", p.code, q.code)
	}
	p.await(`device "off": there are "host" and "cuda"`)
	q.await("no NVIDIA driver is installed here|CGO_ENABLED=1")
}

package inprocess

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// gauges are an engine's metrics of its work. When all are zero, the engine is idle.
var gauges = []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "cascade_emulator_frozen_requests", "cascade_emulator_reserved_blocks"}

// engineWork describes the work that an engine still has, or returns "".
func (r *fleetHarness) engineWork(id string) string {
	resp, err := r.HTTP.Get(r.replica(id).Engine + "/metrics")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.Status
	}
	found := 0
	var out []string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		for _, g := range gauges {
			if g != name {
				continue
			}
			found++
			if v, err := strconv.ParseFloat(value, 64); err != nil || v != 0 {
				out = append(out, name+" "+value)
			}
		}
	}
	if found != len(gauges) {
		return fmt.Sprintf("%d of %d gauges", found, len(gauges))
	}
	return strings.Join(out, ", ")
}

// migratorWork describes the work that a migrator still has, or returns "".
func (r *fleetHarness) migratorWork(id string) string {
	d := r.daemons[id]
	streams := 0
	d.Frontend().EachStream(func(*frontend.Stream) bool { streams++; return true })
	residents := len(d.Frontend().LocalLegs())
	var migrations, offers int
	if d.Executor() != nil {
		s := d.Market().Status()
		migrations, offers = d.Executor().Stats().Running, s.Offers+s.Exporting+s.Importing+int(s.Incoming)
	}
	if streams+residents+migrations+offers == 0 {
		return ""
	}
	return fmt.Sprintf("%d streams, %d residents, %d migrations, %d in the market", streams, residents, migrations, offers)
}

// waitForIdle waits until nothing is left of any request at any running replica: no slot, no frozen
// request, no reservation.
func (r *fleetHarness) waitForIdle() {
	r.T.Helper()
	var left string
	defer func() {
		if r.T.Failed() && left != "" {
			r.T.Log("left over:\n" + left)
		}
	}()
	if r.handOver {
		r.WaitFor("the migrators have no work", func() bool {
			left = ""
			for id := range r.daemons {
				if what := r.migratorWork(id); what != "" && r.parts.alive("front "+id) {
					left += fmt.Sprintf("  front %s: %s\n", id, what)
				}
			}
			return left == ""
		})
	}
	r.WaitFor("nothing is left over", func() bool {
		left = ""
		for _, n := range r.cfg.Fleet.Fleet.Replicas {
			if r.parts.alive("engine " + n.ID) {
				if what := r.engineWork(n.ID); what != "" {
					left += fmt.Sprintf("  engine %s: %s\n", n.ID, what)
				}
			}
			if r.parts.alive("front " + n.ID) {
				if what := r.migratorWork(n.ID); what != "" {
					left += fmt.Sprintf("  front %s: %s\n", n.ID, what)
				}
			}
		}
		return left == ""
	})
}

package processes

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// faultRow is a row of the table of faults: one fault of a running fleet, and who names it.
type faultRow struct {
	name   string
	inject func()
	// witness is called before inject, and returns whether the first process that can notice the
	// fault has; nil: no log shows it.
	witness func() (detected func() bool)
	// kind and object are those of the FAULT line and of the metric cascade_fault, and text
	// matches the line's text.
	kind, object, text string
	// named replaces the FAULT line and cascade_fault, for faults that no control plane can name.
	named func() (status, metric bool)
	heal  func()
	ask   *plane // the control plane that is asked; nil: the first
	// notReady says that requests or orders fail, so that the command's exit code is 1 and
	// /readyz answers 503; down that requests must fail, because no replica is left.
	notReady, down bool
	quick          bool // a part of "make test"
}

// metric returns the metric that names the fault.
func (r faultRow) metric() string {
	return fmt.Sprintf(`cascade_fault{kind=%q,object=%q} 1`, r.kind, r.object)
}

// faultTable runs rows on a fleet under load, and collects the lines of the table.
type faultTable struct {
	*fleet
	plane string // of the data plane: proxy or envoy
	load  *harness.Load
	known int // failed requests before the row
	lines []string
}

func newFaultTable(f *fleet, dataPlane string) *faultTable {
	t := &faultTable{fleet: f, plane: dataPlane}
	t.load = f.NewLoad(harness.LoadConfig{
		Workers: 6,
		Body: func(worker int, rng *rand.Rand) []byte {
			return harness.Prompt(1+worker, []int{300, 1000, 4000}[rng.IntN(3)], 40)
		},
		Streamed: func(n int) bool { return n%4 != 0 },
	})
	t.load.WaitForRequests(6)
	return t
}

// logs returns a witness: one of the processes writes a matching line.
func logs(pattern string, list func() []*harness.Daemon) func() func() bool {
	re := regexp.MustCompile(pattern)
	return func() func() bool {
		from := map[*harness.Daemon]int{}
		for _, p := range list() {
			from[p] = len(p.Log.String())
		}
		return func() bool {
			return slices.ContainsFunc(list(), func(p *harness.Daemon) bool { return re.MatchString(p.Log.String()[from[p]:]) })
		}
	}
}

// logs is a witness: the replica's migrator writes a matching line.
func (r *replica) logs(pattern string) func() func() bool {
	return logs(pattern, func() []*harness.Daemon { return []*harness.Daemon{r.migrator} })
}

// planesLog is a witness: a control plane writes a matching line.
func (f *fleet) planesLog(pattern string) func() func() bool {
	return logs(pattern, func() (list []*harness.Daemon) {
		for _, p := range f.planes {
			list = append(list, p.process)
		}
		return list
	})
}

// run injects the fault of a row, waits until it is named, heals it, and waits until it is not
// named any more.
func (t *faultTable) run(tt *testing.T, r faultRow) {
	ask := r.ask
	if ask == nil {
		ask = t.planes[0]
	}
	t.lostSince()
	detected := func() bool { return true }
	if r.witness != nil {
		detected = r.witness()
	}
	began := time.Now()
	r.inject()
	var at [4]time.Duration // detected, in the status, in the metrics; over
	seen := func(i int, is bool) {
		if is && at[i] == 0 {
			at[i] = time.Since(began)
		}
	}
	isNamed := holds(func() bool {
		seen(0, detected())
		if r.named != nil {
			status, metric := r.named()
			seen(1, status)
			seen(2, metric)
		} else {
			_, named := ask.fault(r)
			seen(1, named)
			page, err := t.Get("http://" + ask.admin + "/metrics")
			seen(2, err == nil && strings.Contains(page, r.metric()))
		}
		return at[0] > 0 && at[1] > 0 && at[2] > 0
	})
	if !isNamed {
		status, _ := ask.status()
		tt.Errorf("%s: detected after %v, in the status after %v, in the metrics after %v (0: never); the status has %+v", r.name, at[0], at[1], at[2], status.Faults)
	} else if r.named == nil {
		t.checkStatusCommand(tt, ask, r)
	}
	if r.witness == nil {
		at[0] = min(at[1], at[2])
	}
	if !r.down {
		t.load.WaitForRequests(6)
	}
	mended := time.Now()
	r.heal()
	if left := ""; !holds(func() bool { left = t.leftOver(); return left == "" }) {
		tt.Fatalf("%s was mended, and is not over: %s", r.name, left)
	}
	at[3] = time.Since(mended)
	if (r.kind == control.FaultClients || r.kind == "certificate") && (at[3] > overWithin || at[1] > at[0]+namedWithin) {
		tt.Errorf("%s: named %v after it was detected, over %v after it was mended; want %v and %v at most", r.name, at[1]-at[0], at[3], namedWithin, overWithin)
	}
	t.load.WaitForRequests(6)
	lost, cut := t.lostSince()
	if lost > 0 && !r.down {
		tt.Errorf("%s: %d requests that had not begun were lost; the first: %v", r.name, lost, t.load.Failures()[t.known-lost-cut])
	}
	t.lines = append(t.lines, r.line(t.plane, at, lost, cut))
	tt.Log(t.lines[len(t.lines)-1])
}

// namedWithin and overWithin bound the times of faults that are named by what happened within a window.
const namedWithin, overWithin = 5 * time.Second, 10 * time.Second

// rowPatience bounds the waits of a row, so that one that fails does not keep the others from running.
const rowPatience = 45 * time.Second

// holds waits for a condition, and reports whether it came to hold.
func holds(is func() bool) bool {
	for end := time.Now().Add(rowPatience); !is(); time.Sleep(tick) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// leftOver says what a control plane still shows of a fault; "" for nothing.
func (t *faultTable) leftOver() string {
	for _, p := range t.planes {
		s, err := p.status()
		if err != nil || len(s.Faults) > 0 || !hasFreshReports(s) {
			return fmt.Sprintf("%s: %+v, %v, with fresh reports: %v", p.name, s.Faults, err, hasFreshReports(s))
		}
	}
	return ""
}

// fault returns the line of a row in the control plane's status.
func (p *plane) fault(r faultRow) (control.Fault, bool) {
	s, err := p.status()
	if err != nil {
		return control.Fault{}, false
	}
	text := regexp.MustCompile(r.text)
	i := slices.IndexFunc(s.Faults, func(f control.Fault) bool {
		return f.Kind == r.kind && f.Object == r.object && f.NotReady == r.notReady && text.MatchString(f.Text)
	})
	if i < 0 {
		return control.Fault{}, false
	}
	return s.Faults[i], true
}

// checkStatusCommand checks what "cascade status" prints and returns, as text and as JSON, and
// /readyz.
func (t *faultTable) checkStatusCommand(tt *testing.T, ask *plane, r faultRow) {
	tt.Helper()
	text, code := commandCode("status", "--control", "http://"+ask.admin)
	if !regexp.MustCompile(`(?m)^(NOT READY: )?FAULT ` + regexp.QuoteMeta(r.kind+" "+r.object) + `: .*(` + r.text + `)`).MatchString(text) {
		tt.Errorf("%s: cascade status prints no FAULT line of it:\n%s", r.name, text)
	}
	if strings.HasPrefix(text, "NOT READY") != r.notReady || (code == 1) != r.notReady {
		tt.Errorf("%s: cascade status exits with %d, want the headline NOT READY and 1: %v\n%s", r.name, code, r.notReady, text)
	}
	if want := fmt.Sprintf(`{"kind":%q,"object":%q,`, r.kind, r.object); !t.consoleShows(ask, want) {
		tt.Errorf("%s: the console does not show it", r.name)
	}
	text, _ = commandCode("status", "--json", "--control", "http://"+ask.admin)
	var s control.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil || !slices.ContainsFunc(s.Faults, func(f control.Fault) bool { return f.Kind == r.kind && f.Object == r.object }) {
		tt.Errorf("%s: cascade status --json has no such fault: %v", r.name, err)
	}
	if _, err := t.Get("http://" + ask.admin + "/readyz"); (err != nil) != r.notReady {
		tt.Errorf("%s: /readyz of %s: %v, want ready: %v", r.name, ask.name, err, !r.notReady)
	}
}

// consoleEvents is how many events of the console, one a second, are looked at: the first is older than the fault.
const consoleEvents = 5

// consoleShows reports whether one of the next events of a control plane's console contains a text.
func (t *faultTable) consoleShows(ask *plane, text string) bool {
	t.T.Helper()
	resp, err := t.HTTP.Get("http://" + ask.admin + "/console/events")
	testkit.NoError(t.T, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for events := 0; events < consoleEvents; {
		line, err := lines.ReadString('\n')
		testkit.NoError(t.T, err)
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if events++; strings.Contains(data, text) {
				return true
			}
		}
	}
	return false
}

// commandCode runs a command line to its end and returns its standard output and exit code.
func commandCode(args ...string) (string, int) {
	cmd := exec.Command(cascade, args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// lostSince counts the requests since the last call that got no answer, and those that ended in
// the middle of one.
func (t *faultTable) lostSince() (lost, cut int) {
	all := t.load.Failures()
	for _, err := range all[t.known:] {
		if errors.Is(err, harness.ErrCut) {
			cut++
		} else {
			lost++
		}
	}
	t.known = len(all)
	return lost, cut
}

// faultTableHead begins the table, as Markdown.
const faultTableHead = "| fault | data plane | `cascade status` | metric | detected after | then in status | in metric | over after | lost | cut |\n|---|---|---|---|---:|---:|---:|---:|---:|---:|"

// line returns the row of the table.
func (r faultRow) line(dataPlane string, at [4]time.Duration, lost, cut int) string {
	says, metric := "FAULT "+r.kind+" "+r.object, "`"+strings.TrimSuffix(r.metric(), " 1")+"`"
	if r.named != nil {
		says, metric = r.text, "`"+r.object+"`"
	} else if r.notReady {
		says = "NOT READY, " + says
	}
	lostText := fmt.Sprint(lost)
	if r.down {
		lostText = "all"
	}
	later := func(i int) string { return fmt.Sprintf("%.1f s", max(0, at[i]-at[0]).Seconds()) }
	return fmt.Sprintf("| %s | %s | %s | %s | %.1f s | %s | %s | %.1f s | %s | %d |", r.name, dataPlane, says, metric, at[0].Seconds(), later(1), later(2), at[3].Seconds(), lostText, cut)
}

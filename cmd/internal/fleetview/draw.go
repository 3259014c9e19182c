package fleetview

import (
	"fmt"
	"math"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// The smallest terminal that something is shown in.
const (
	leastWidth  = 40
	leastHeight = 10
)

// Draw draws a model: as many lines as the terminal has, none wider than it.
func Draw(m Model) Frame {
	d := drawing{m: m, shown: Show(m)}
	var f Frame
	switch {
	case m.width < leastWidth || m.height < leastHeight:
		needs := fmt.Sprintf("Needs %d×%d, has %d×%d.", leastWidth, leastHeight, m.width, m.height)
		f = Frame{line{{needs, plain}}, d.header()}
	case m.help:
		f = d.drawHelp()
	case !m.answered:
		f = append(Frame{d.header()}, d.awayLines()...)
	default:
		f = d.drawFleet()
	}
	f = f.pad(m.height)[:m.height]
	if m.height >= leastHeight && m.width >= leastWidth {
		f[m.height-1] = d.footer()
	}
	for i := range f {
		if m.cfg.ASCII {
			f[i] = f[i].ascii()
		}
		f[i] = f[i].cut(m.width)
	}
	return f
}

// ascii has what stands for the characters of frames that only Unicode has.
var ascii = strings.NewReplacer("█", "#", "░", ".", "─", "-", "├", "|", "┼", "|", "┤", "|",
	"→", ">", "…", "~", "–", "-", "∞", "~", "×", "x", "↑↓", "j/k")

// ascii returns the line in ASCII, but for what is in names.
func (l line) ascii() line {
	out := make(line, len(l))
	for i, s := range l {
		out[i] = span{ascii.Replace(s.text), s.tone}
	}
	return out
}

// drawing draws one frame.
type drawing struct {
	m     Model
	shown Shown
}

// drawFleet draws the fleet: the sections from top to bottom. Replicas get the lines that are left.
func (d *drawing) drawFleet() Frame {
	l := d.m.layout(d.shown)
	f := Frame{d.header()}
	if l.away > 0 {
		f = append(f, d.awayLines()...)
	}
	f = append(f, d.planLine())
	f = append(f, d.faultLines(l.faults)...)
	f = append(f, d.axis()...)
	f = append(f, d.stageLines(l.stages)...)
	f = append(f, d.replicaLines(l.replicas)...)
	f = append(f, d.migrationLines(l.migrations)...)
	return append(f, d.proxyLines(l.proxies)...)
}

// layout is how many lines the sections get, without their titles.
type layout struct{ away, faults, stages, replicas, migrations, proxies int }

// fixedLines are those that every frame of a fleet has: the header, the plan, the axis with its labels, the
// titles of three lists, and the footer.
const fixedLines = 2 + 2 + 3 + 1

// layout divides the lines of the terminal.
func (m Model) layout(s Shown) layout {
	l := layout{faults: min(len(s.Faults), max(2, m.height/12)), stages: min(len(s.Stages), max(2, m.height/6))}
	if s.AwaySince != nil {
		l.away = len(awayText(m, s))
	}
	l.migrations = min(max(1, len(s.Migrations)), max(2, m.height/8))
	l.proxies = min(max(1, len(s.Proxies)), max(2, m.height/10))
	l.replicas = max(1, m.height-fixedLines-l.away-l.faults-l.stages-l.migrations-l.proxies)
	return l
}

// replicaRows returns how many replicas are in view.
func (m Model) replicaRows() int { return m.layout(Show(m)).replicas }

// lastScroll returns how far the replicas can be scrolled.
func (m Model) lastScroll() int {
	s := Show(m)
	return max(0, len(s.Replicas)-m.layout(s).replicas)
}

// header says which control plane, when, and whether the fleet is well.
func (d *drawing) header() line {
	l := line{}.add(strong, "cascade top")
	switch s := d.shown; {
	case !d.m.answered && s.AwaySince == nil:
		l = l.add(faint, "  asking the control plane …")
	case s.Verdict == Away:
		l = l.add(plain, "  ").add(badge, "NO ANSWER")
	case s.Verdict == control.NotReady:
		l = l.add(plain, "  ").add(badge, "NOT READY").add(bad, " requests or orders fail")
	case s.Verdict == control.Starting:
		l = l.add(plain, "  ").add(warning, "STARTING")
	case s.Verdict == control.Faulty:
		l = l.add(plain, "  ").add(warning, strings.ToUpper(cli.Plural(len(s.Faults), "fault")))
	default:
		l = l.add(plain, "  ").add(good, "OK")
	}
	right := d.shown.Control
	if !d.m.now.IsZero() {
		right += "  " + d.m.now.In(d.m.cfg.Location).Format(time.TimeOnly)
	}
	if gap := d.m.width - l.width() - lipgloss.Width(right); gap > 1 {
		l = l.add(plain, strings.Repeat(" ", gap)).add(faint, right)
	}
	return l
}

// awayText says since when there is no answer, and why.
func awayText(m Model, s Shown) []string {
	since := *s.AwaySince
	text := []string{fmt.Sprintf("No control plane has answered since %s (%s): %s",
		since.In(m.cfg.Location).Format(time.TimeOnly), age(m.now.Sub(since)), s.Error)}
	if m.answered {
		return append(text, fmt.Sprintf("What follows is %s old. Traffic goes on without the control plane.",
			age(m.now.Sub(m.last.At))))
	}
	return text
}

func (d *drawing) awayLines() (f Frame) {
	if d.shown.AwaySince == nil {
		return nil
	}
	for i, text := range awayText(d.m, d.shown) {
		f = append(f, line{{text, [...]tone{bad, faint}[min(i, 1)]}})
	}
	return f
}

// planLine says which model is shown, its plan, its traffic and how many replicas it should have.
func (d *drawing) planLine() line {
	s := d.shown
	l := line{}.add(strong, s.Model)
	if len(s.Models) > 1 {
		l = l.add(faint, fmt.Sprintf(" (%d of %d, Tab)", d.m.modelIndex()+1, len(s.Models)))
	}
	l = l.add(plain, fmt.Sprintf("  plan %d", s.Epoch))
	if s.PublishedEpoch < s.Epoch {
		l = l.add(warning, fmt.Sprintf(", proxies have %d (%s)", s.PublishedEpoch, s.Phase))
	}
	l = l.add(plain, fmt.Sprintf("  %.1f req/s  %s", s.Rate, cli.Plural(s.Present, "replica")))
	if s.Desired > 0 {
		l = l.add(plain, fmt.Sprintf(", %d wanted", s.Desired))
	}
	if s.Planner == "" {
		return l
	}
	return l.note(" " + s.Planner)
}

// faultLines lists the most serious faults.
func (d *drawing) faultLines(n int) (f Frame) {
	for i, fault := range d.shown.Faults {
		if i == n-1 && len(d.shown.Faults) > n {
			rest := fmt.Sprintf("… and %s: cascade status", cli.Plural(len(d.shown.Faults)-i, "more fault"))
			return append(f, line{{rest, warning}})
		}
		t := warning
		if fault.NotReady {
			t = bad
		}
		text := fmt.Sprintf("%s %s", fault.Kind, fault.Object)
		if fault.Seconds > 0 {
			text += " " + age(time.Duration(fault.Seconds*float64(time.Second)))
		}
		f = append(f, line{}.add(t, "! "+text).add(plain, ": "+fault.Text))
	}
	return f
}

// stageLines lists the stages with what they serve.
func (d *drawing) stageLines(n int) (f Frame) {
	for i, st := range d.shown.Stages {
		if i == n-1 && len(d.shown.Stages) > n {
			return append(f, line{{fmt.Sprintf("… and %s", cli.Plural(len(d.shown.Stages)-i, "more stage")), faint}})
		}
		l := line{}.add(strong, fit(st.Name, 3)).add(plain, fit(formatRange(st.Low, st.High), 18))
		up := fmt.Sprintf("%d/%d up", st.Healthy, st.Replicas)
		t := plain
		if st.Healthy < st.Replicas {
			t = warning
		}
		l = l.add(t, fit(up, 10)).add(loadTone(st.Load), bar(st.Load, 10)).add(plain, fmt.Sprintf(" %3.0f %%", 100*st.Load))
		l = l.add(plain, fmt.Sprintf("  %d running, %d waiting", st.Running, st.Waiting))
		if st.Requests > 0 || st.Tokens > 0 {
			l = l.add(faint, fmt.Sprintf("  %.0f %% of requests, %.0f %% of tokens", 100*st.Requests, 100*st.Tokens))
		}
		f = append(f, l)
	}
	return f
}

// replicaLines lists the replicas from the scroll position on, under a title with order and filter.
func (d *drawing) replicaLines(n int) Frame {
	s, m := d.shown, d.m
	scroll := min(m.scroll, max(0, len(s.Replicas)-n))
	c := columnsOf(m.width)
	title := line{{fit("replica", c.name) + fit("stage", c.stage) + fit("health", c.health) + fit("load", c.bar+6) +
		fitRight("run", c.count) + fitRight("wait", c.count) + fitRight("iter", c.iteration), strong}}
	if c.weight > 0 {
		title = title.add(strong, fitRight("weight", c.weight))
	}
	note := fmt.Sprintf(" by %v", m.order)
	if len(s.Replicas) > n {
		note += fmt.Sprintf(", %d–%d of %d", scroll+1, min(scroll+n, len(s.Replicas)), len(s.Replicas))
	}
	if s.Hidden > 0 {
		note += fmt.Sprintf(", %d hidden", s.Hidden)
	}
	f := Frame{title.add(faint, note)}
	for _, r := range s.Replicas[scroll:min(scroll+n, len(s.Replicas))] {
		f = append(f, d.replicaLine(r, c))
	}
	if len(s.Replicas) == 0 {
		f = append(f, line{{d.none("replica", s.Hidden), faint}})
	}
	return f.pad(n + 1)
}

// columns are the widths of the columns of replicas; a narrow terminal has no weights and no hosts, so that it
// has room for what is wrong.
type columns struct {
	name, stage, health, bar, count, iteration, weight int
	hosts                                              bool
}

func columnsOf(width int) columns {
	if width < 110 {
		return columns{name: max(12, width/7), stage: 6, health: 10, bar: 5, count: 5, iteration: 7}
	}
	return columns{name: width / 5, stage: 8, health: 11, bar: 10, count: 7, iteration: 8, weight: 7, hosts: true}
}

// replicaLine is one replica.
func (d *drawing) replicaLine(r Replica, c columns) line {
	health := plain
	switch r.Health {
	case healthy:
	case "draining":
		health = warning
	default:
		health = bad
	}
	l := line{}.add(plain, fit(r.ID, c.name-1)+" "+fit(r.Stage, c.stage-1)+" ").add(health, fit(r.Health, c.health-1)+" ")
	l = l.add(loadTone(r.Load), bar(r.Load, c.bar)).add(plain, fmt.Sprintf(" %3.0f %%", 100*r.Load))
	iteration := "-"
	if r.Iteration > 0 {
		iteration = fmt.Sprintf("%.0f ms", math.Round(r.Iteration*1e3))
	}
	waiting := plain
	if r.Waiting > 0 {
		waiting = warning
	}
	l = l.add(plain, fitRight(fmt.Sprint(r.Running), c.count)).add(waiting, fitRight(fmt.Sprint(r.Waiting), c.count))
	l = l.add(plain, fitRight(iteration, c.iteration))
	if c.weight > 0 {
		l = l.add(plain, fitRight(fmt.Sprint(r.Weight), c.weight))
	}
	note := r.Reason
	if len(r.Drain) > 0 {
		note = fmt.Sprintf("drain: %s, %d left", strings.Join(r.Drain, ", "), r.Residents)
	} else if c.hosts && note == "" {
		note = r.Host
	}
	return l.note(note)
}

// migrationLines lists the latest migrations.
func (d *drawing) migrationLines(n int) Frame {
	s := d.shown
	f := Frame{line{}.add(strong, "migrations").add(faint, d.migrationNote())}
	for _, x := range s.Migrations[:min(n, len(s.Migrations))] {
		began := "        "
		if x.Began != nil {
			began = x.Began.In(d.m.cfg.Location).Format(time.TimeOnly)
		}
		t, tokens := plain, ""
		if d.m.width >= 100 {
			tokens = fitRight(policies.Tokens(x.Tokens).Grouped(), 8) + " tok"
		}
		if strings.HasPrefix(x.State, "aborted") {
			t = warning
		}
		stall := "-"
		if x.Stall > 0 {
			stall = fmt.Sprintf("%.0f ms", math.Round(x.Stall*1e3))
		}
		f = append(f, line{}.add(faint, began+" ").add(plain, fit(x.From+" → "+x.To, max(20, d.m.width/4))).
			add(plain, fit(x.Cause, 12)).add(plain, fit(x.Method, 9)).add(plain, tokens).
			add(plain, fitRight(stall, 8)+" stall ").add(t, x.State).note(x.Request))
	}
	if len(s.Migrations) == 0 {
		f = append(f, line{{d.none("migration", len(d.m.last.Migrations.Migrations)), faint}})
	}
	return f.pad(n + 1)
}

// migrationNote sums the listed migrations up.
func (d *drawing) migrationNote() string {
	worst, running := 0.0, 0
	for _, x := range d.shown.Migrations {
		switch {
		case x.State == "done":
			worst = max(worst, x.Stall)
		case !strings.HasPrefix(x.State, "aborted") && x.Cause != loadreport.CausePrefix:
			running++
		}
	}
	if len(d.shown.Migrations) == 0 {
		return ""
	}
	return fmt.Sprintf("  the last %d: %d running, longest stall %.0f ms",
		len(d.shown.Migrations), running, math.Round(worst*1e3))
}

// proxyLines lists the proxies, those first that need attention.
func (d *drawing) proxyLines(n int) Frame {
	s := d.shown
	f := Frame{line{}.add(strong, "proxies").add(faint, proxyNote(s.Proxies))}
	for i, p := range s.Proxies {
		if i == n-1 && len(s.Proxies) > n {
			f = append(f, line{{fmt.Sprintf("… and %d more", len(s.Proxies)-i), faint}})
			break
		}
		t := plain
		switch p.State {
		case "refuses":
			t = bad
		case "late", "gone", "unlisted":
			t = warning
		case "current":
			t = good
		}
		plan := "plan –"
		if p.Epoch > 0 {
			plan = fmt.Sprintf("plan %d", p.Epoch)
		}
		l := line{}.add(plain, fit(p.Node, max(24, d.m.width/3))).add(t, fit(p.State, 11))
		l = l.add(plain, fit(plan, 12)+fmt.Sprintf("%d NACKs", p.NACKs))
		f = append(f, l.note(p.Error))
	}
	if len(s.Proxies) == 0 {
		f = append(f, line{{d.none("proxy", len(d.m.last.Status.Nodes)), faint}})
	}
	return f.pad(n + 1)
}

// proxyNote counts the proxies by state.
func proxyNote(list []Proxy) string {
	current := 0
	for _, p := range list {
		if p.State == "current" {
			current++
		}
	}
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("  %d of %d current", current, len(list))
}

// none says that a list is empty, and why.
func (d *drawing) none(thing string, hidden int) string {
	if hidden > 0 && d.m.filter != "" {
		return "none: the filter hides them all"
	}
	return "no " + thing + " yet"
}

// footer lists the keys, or the filter that is being typed.
func (d *drawing) footer() line {
	switch m := d.m; {
	case m.typing:
		return line{}.add(strong, "filter: ").add(plain, Clean(m.filter)+"_").add(faint, "  Enter keeps it, Esc shows all")
	case m.help:
		return line{{"? or Esc: back   q: quit", faint}}
	case m.filter != "":
		keys := "  Esc shows all   q quit  ? help  s sort  / filter"
		return line{}.add(warning, "filter: "+Clean(m.filter)).add(faint, keys)
	}
	return line{{"q quit  ? help  s sort  / filter  Tab model  ↑↓ scroll", faint}}
}

// drawHelp explains the keys and the columns.
func (d *drawing) drawHelp() Frame {
	f := Frame{d.header(), nil}
	for _, row := range [...][2]string{
		{"q, Ctrl-C", "quit"},
		{"s, S", "sort: stage, load, waiting, iteration, name; S backwards"},
		{"/", "filter replicas, migrations and proxies by any text of theirs"},
		{"Esc", "show all again"},
		{"Tab, m", "the next model; Shift-Tab, M: the one before"},
		{"j k PgDn PgUp", "scroll the replicas; g, G: to the first, the last"},
		{"", ""},
		{"load", "KV cache used and promised; where its size is not known,"},
		{"", "relative to the replica that holds most"},
		{"iter", "mean time between two tokens of a request"},
		{"weight", "EDS weight; 100 is neutral"},
		{"stall", "how long a client waited for the next token meanwhile"},
		{"wanted", "replicas that an autoscaler should run (cascade_desired_replicas)"},
	} {
		f = append(f, line{}.add(strong, fit(row[0], 15)).add(plain, row[1]))
	}
	return f
}

// loadTone warns of replicas that are nearly full.
func loadTone(load float64) tone {
	switch {
	case load >= 0.95:
		return bad
	case load >= 0.8:
		return warning
	}
	return good
}

// bar draws a share, 0 to 1, as so many cells.
func bar(share float64, cells int) string {
	n := int(math.Round(share * float64(cells)))
	return strings.Repeat("█", n) + strings.Repeat("░", cells-n)
}

// age returns a time in seconds, minutes or hours.
func age(d time.Duration) string {
	switch d = max(0, d.Round(time.Second)); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

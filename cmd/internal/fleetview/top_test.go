package fleetview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// noon is the time of the tests.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// fleet is the answer of a fleet of so many replicas in three stages, of which one drains and one is lost.
func fleet(replicas int) Answer {
	at := func(seconds int) time.Time { return noon.Add(-time.Duration(seconds) * time.Second) }
	length := func(t policies.Tokens) *policies.Tokens { return &t }
	m := control.Model{
		Name: "llama-3.1-8b", Context: 131072, Epoch: 12, Reason: "better plan", Planner: "plan in force is the best", Seen: 12345, Rate: 41.25,
		Scaling: &control.Scaling{Desired: replicas + 1, Present: replicas, Reason: "needed"},
		Stages: []control.Stage{
			{Name: "s0", Low: 0, High: length(768), Reason: &control.StageReason{Requests: 0.8, Tokens: 0.45, MergedWith: "s1"}},
			{Name: "s1", Low: 768, High: length(8192), Reason: &control.StageReason{Requests: 0.18, Tokens: 0.35, MergedWith: "s0"}},
			{Name: "s2", Low: 8192, Reason: &control.StageReason{Requests: 0.02, Tokens: 0.2, MergedWith: "s1"}},
		},
	}
	for i := range replicas {
		r := control.Replica{
			ID: policies.ReplicaID(fmt.Sprint("r", i)), Address: fmt.Sprintf("10.0.0.%d:9000", i), Host: fmt.Sprint("gpu-", i/4), Health: "healthy", Reason: "ready", Weight: uint32(90 + 5*(i%5)),
			Running: 10 + i%7, Held: policies.Tokens(9000 * (i%9 + 1)), Promised: 500, Iteration: 0.012 + 0.001*float64(i%9),
			EngineLoad: &control.EngineLoad{Capacity: 100_000, KVUsed: policies.Tokens(9000 * (i%9 + 1))},
		}
		stage := min(3*i/max(replicas, 1), 2)
		switch i {
		case 1:
			r.Waiting = 4
		case 3:
			r.Health, r.Drain, r.Residents = "draining", []string{"operator"}, 7
		case 5:
			r.Health, r.HealthReason, r.EngineLoad = "unhealthy", "its engine makes no progress", nil
		}
		m.Stages[stage].Replicas = append(m.Stages[stage].Replicas, r)
	}
	a := Answer{Control: "127.0.0.1:18001", At: noon, Took: time.Millisecond}
	a.Status = control.Status{
		Time: noon, Verdict: control.Well, Epoch: 12, PublishedEpoch: 12, Phase: "idle", Models: []control.Model{m, {Name: "qwen-3-32b", Context: 32768, Epoch: 9, Stages: []control.Stage{{Name: "s0", Replicas: []control.Replica{{ID: "q0", Health: "healthy", Held: 10}, {ID: "q1", Health: "healthy", Held: 5}}}}}},
		Nodes: []control.Node{
			{ID: "edge-1", State: "current", Connected: true, Current: true, Epoch: 12}, {ID: "edge-0", State: "current", Connected: true, Current: true, Epoch: 12},
			{ID: "edge-2", State: "refuses", Connected: true, Refusing: true, Epoch: 11, NACKs: 3, LastError: "RDS cascade: duplicate domain"},
		},
	}
	a.Migrations.Migrations = []control.Migration{
		{ID: "r3/2", Request: "r3/17", Cause: "drain", From: "r3", To: "r4", Method: "live", State: "pulling", Tokens: 65536, Started: at(1)},
		{ID: "r0/2", Request: "r0/9", Cause: "growth", From: "r0", To: "r2", Method: "live", State: "done", Tokens: 9001, Stall: 0.024, Started: at(3)},
		{ID: "r5/1", Request: "r5/4", Cause: "engine lost", From: "r5", To: "r2", Method: "reprompt", State: "done", Tokens: 512, Stall: 1.25, Started: at(9)},
		{ID: "r1/1", Request: "r1/4", Cause: "outlier", From: "r1", To: "r2", Method: "handoff", State: "aborted", Reason: "the request ended", Tokens: 300},
	}
	return a
}

// fault makes an answer one of a fleet with faults.
func (a Answer) fault(notReady bool) Answer {
	a.Status.Faults = []control.Fault{
		{Kind: "replica", Object: "r5", Text: "its engine makes no progress", Seconds: 75, NotReady: notReady},
		{Kind: "rollout", Object: "plan", Text: "edge-2 refuses what other proxies of its group run", Seconds: 7300},
		{Kind: "certificate", Object: "migrator r2", Text: "its certificate expires in 2 h"},
	}
	a.Status.PublishedEpoch, a.Status.Phase, a.Status.Verdict = 11, "watch", map[bool]Verdict{true: control.NotReady, false: control.Faulty}[notReady]
	return a
}

// keys are the messages of keys that are not letters.
var keys = map[string]tea.KeyPressMsg{
	"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab}, "backspace": {Code: tea.KeyBackspace}, "shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift},
	"down": {Code: tea.KeyDown}, "up": {Code: tea.KeyUp}, "pgdown": {Code: tea.KeyPgDown}, "pgup": {Code: tea.KeyPgUp}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl},
}

// press sends keys, separated by spaces, and returns the model and whether it quits.
func press(t testing.TB, m Model, names string) (Model, bool) {
	t.Helper()
	for name := range strings.FieldsSeq(names) {
		key, ok := keys[name]
		if !ok {
			if len([]rune(name)) > 1 {
				t.Fatalf("no key %q", name)
			}
			key = tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
		}
		if key.String() != name {
			t.Fatalf("the key %q is called %q", name, key.String())
		}
		next, cmd := m.Update(key)
		m = next.(Model)
		if cmd != nil {
			if _, quits := cmd().(tea.QuitMsg); quits {
				return m, true
			}
		}
	}
	return m, false
}

// update returns the model after a message that causes no command, or one that is not run.
func update(m Model, msg tea.Msg) Model {
	next, _ := m.Update(msg)
	return next.(Model)
}

// TestFrames compares whole frames with testdata/*.txt (-rewrite writes them): fleets in terminals of several
// sizes, after keys.
func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		answer        Answer
		width, height int
		keys          string
		cfg           Config
		away          bool
	}{
		"well":           {answer: fleet(8), width: 80, height: 24},
		"wide":           {answer: fleet(24).fault(false), width: 160, height: 50},
		"not-ready":      {answer: fleet(8).fault(true), width: 80, height: 24},
		"away":           {answer: fleet(8), width: 80, height: 24, away: true},
		"sorted":         {answer: fleet(24), width: 100, height: 24, keys: "s"},
		"scrolled":       {answer: fleet(24), width: 80, height: 24, keys: "pgdown down"},
		"filtered":       {answer: fleet(24), width: 80, height: 24, keys: "/ R 5 enter"},
		"typing":         {answer: fleet(24), width: 80, height: 24, keys: "/ d r a i"},
		"nothing":        {answer: fleet(8), width: 80, height: 24, cfg: Config{Filter: "no such thing"}},
		"second-model":   {answer: fleet(8), width: 80, height: 24, keys: "tab"},
		"help":           {answer: fleet(8), width: 80, height: 24, keys: "?"},
		"ascii":          {answer: fleet(8).fault(false), width: 80, height: 24, cfg: Config{ASCII: true}},
		"small":          {answer: fleet(8).fault(true), width: 40, height: 10},
		"too-small":      {answer: fleet(8), width: 30, height: 5},
		"empty":          {answer: Answer{Control: "127.0.0.1:18001", At: noon, Status: control.Status{Verdict: control.Starting}}, width: 80, height: 24},
		"hostile":        {answer: hostileFleet(), width: 100, height: 30},
		"one-stage-many": {answer: fleet(1000), width: 80, height: 24, keys: "G"},
	} {
		t.Run(name, func(t *testing.T) {
			m := update(update(New(t.Context(), c.cfg), c.answer), tea.WindowSizeMsg{Width: c.width, Height: c.height})
			m, _ = press(t, m, c.keys)
			if c.away {
				m = update(m, Answer{Control: "127.0.0.1:18001", Err: errors.New("dial tcp 127.0.0.1:18001: connect: connection refused"), At: noon.Add(5 * time.Second)})
				m = update(m, Answer{Control: "127.0.0.1:18001", Err: errors.New("no answer within 3s"), At: noon.Add(47 * time.Second)})
			}
			f := Draw(m)
			checkFrame(t, f, c.width, c.height)
			testkit.CompareGolden(t, filepath.Join("testdata", name+".txt"), []byte(f.String()))
		})
	}
}

// checkFrame checks that a frame fills the terminal and nothing else, with and without styles.
func checkFrame(t *testing.T, f Frame, width, height int) {
	t.Helper()
	if len(f) != height || strings.Count(f.Styled(), "\n") != height-1 {
		t.Errorf("%d lines in a terminal of %d", len(f), height)
	}
	for i, l := range f {
		if w := l.width(); w > width {
			t.Errorf("line %d takes %d cells of %d: %v", i, w, width, l)
		}
	}
	for _, l := range strings.Split(f.Styled(), "\n") {
		if w := lipgloss.Width(l); w > width {
			t.Errorf("a styled line takes %d cells of %d: %q", w, width, l)
		}
	}
	for _, r := range f.String() {
		if r != '\n' && (!unicode.IsGraphic(r) || unicode.Is(unicode.Mn, r)) {
			t.Errorf("the frame contains %q", r)
		}
	}
}

// hostile are names that try to control the terminal, to reorder its text and to take its lines.
var hostile = []string{
	"\x1b[2J\x1b[31mred", "a\nb\rc\td", "\x9b31m", "\u202egnp.exe", "\u2066x\u2069", "zero\u200bwidth", "e\u0301\u0301\u0301", "\xff\xfe", "bell\a", "\x1b]0;title\x07", "長い名前の複製", strings.Repeat("x", 10_000),
}

// hostileFleet is a fleet in which whatever is text is hostile.
func hostileFleet() Answer {
	a := fleet(12).fault(false)
	name := func(i int) string { return hostile[i%len(hostile)] }
	m := &a.Status.Models[0]
	m.Name, m.Planner = name(0), name(1)
	n := 0
	for i := range m.Stages {
		for j := range m.Stages[i].Replicas {
			r := &m.Stages[i].Replicas[j]
			r.ID, r.Host, r.HealthReason, r.Drain = policies.ReplicaID(name(n)), name(n+1), name(n+2), []string{name(n + 3)}
			n++
		}
	}
	for i := range a.Status.Nodes {
		a.Status.Nodes[i].ID, a.Status.Nodes[i].LastError = name(i+3), name(i+5)
	}
	for i := range a.Status.Faults {
		a.Status.Faults[i].Object, a.Status.Faults[i].Text = name(i), name(i+8)
	}
	for i := range a.Migrations.Migrations {
		x := &a.Migrations.Migrations[i]
		x.Request, x.From, x.To, x.Cause, x.Method, x.Reason = name(i), policies.ReplicaID(name(i+1)), policies.ReplicaID(name(i+2)), name(i+3), name(i+4), name(i+9)
	}
	a.Control, a.Status.Phase = name(2), name(6)
	return a
}

// TestHostileNames draws a fleet whose names are hostile in terminals of all sizes and states.
func TestHostileNames(t *testing.T) {
	for _, size := range [][2]int{{40, 10}, {80, 24}, {81, 25}, {160, 50}, {300, 100}} {
		m := update(New(t.Context(), Config{}), hostileFleet())
		m = update(m, tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, keys := range []string{"", "s", "tab", "?", "esc / d enter"} {
			m, _ = press(t, m, keys)
			checkFrame(t, Draw(m), size[0], size[1])
		}
		m = update(m, Answer{Err: errors.New(strings.Join(hostile, "")), Control: hostile[0], At: noon})
		checkFrame(t, Draw(m), size[0], size[1])
	}
	text, err := json.Marshal(Show(update(New(t.Context(), Config{}), hostileFleet())))
	testkit.NoError(t, err)
	if !json.Valid(text) || strings.Contains(string(text), `\u001b`) || strings.Contains(string(text), "\u202e") {
		t.Errorf("the JSON is not clean: %s", text)
	}
}

// TestClean checks texts one by one.
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "r0": "r0", "a b": "a b", "\x1b[31mx": "�[31mx", "a\nb\tc": "a b c", "\u202eabc": "�abc", "長い": "長い", "é": "é", "\xff": "�", "\u2028": " ",
		strings.Repeat("y", maxText+1): strings.Repeat("y", maxText) + "…",
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

// FuzzClean: whatever a text is, it is one line of printable characters.
func FuzzClean(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Clean(s) {
			if !unicode.IsGraphic(r) || unicode.Is(unicode.Mn, r) || unicode.IsSpace(r) && r != ' ' {
				t.Errorf("%q is shown with %q", s, r)
			}
		}
		for _, cells := range []int{0, 1, 7, 80} {
			if w := lipgloss.Width(fit(Clean(s), cells)); w != cells {
				t.Errorf("%q takes %d cells of %d", Clean(s), w, cells)
			}
		}
	})
}

// TestKeys sends keys one after the other and checks what they change.
func TestKeys(t *testing.T) {
	m := update(update(New(t.Context(), Config{}), fleet(100)), tea.WindowSizeMsg{Width: 80, Height: 24})
	rows := m.replicaRows()
	for _, c := range []struct {
		keys string
		want string
	}{
		{"j j", "order stage, scroll 2"}, {"k", "order stage, scroll 1"}, {"pgdown", fmt.Sprint("order stage, scroll ", 1+rows)}, {"pgup pgup", "order stage, scroll 0"},
		{"G", fmt.Sprint("order stage, scroll ", 100-rows)}, {"j", fmt.Sprint("order stage, scroll ", 100-rows)}, {"g", "order stage, scroll 0"}, {"up", "order stage, scroll 0"},
		{"s", "order load, scroll 0"}, {"s s", "order iteration, scroll 0"}, {"s s", "order stage, scroll 0"}, {"S", "order name, scroll 0"}, {"s", "order stage, scroll 0"},
		{"/ q", `order stage, scroll 0, filter "q", typing`}, {"backspace r 7 enter", `order stage, scroll 0, filter "r7"`}, {"j", `order stage, scroll 0, filter "r7"`}, {"esc", "order stage, scroll 0"},
		{"/ x ctrl+u z", `order stage, scroll 0, filter "z", typing`}, {"esc", "order stage, scroll 0"},
		{"tab", `order stage, scroll 0, model "qwen-3-32b"`}, {"j", `order stage, scroll 0, model "qwen-3-32b"`}, {"tab", `order stage, scroll 0, model "llama-3.1-8b"`}, {"shift+tab", `order stage, scroll 0, model "qwen-3-32b"`},
		{"?", `order stage, scroll 0, model "qwen-3-32b", help`}, {"?", `order stage, scroll 0, model "qwen-3-32b"`}, {"/ r enter j", `order stage, scroll 0, model "qwen-3-32b", filter "r"`}, {"? esc", `order stage, scroll 0, model "qwen-3-32b", filter "r"`}, {"esc", `order stage, scroll 0, model "qwen-3-32b"`}, {"w", `order stage, scroll 0, model "qwen-3-32b"`},
	} {
		var quits bool
		if m, quits = press(t, m, c.keys); quits {
			t.Errorf("%s quits", c.keys)
		}
		got := fmt.Sprintf("order %v, scroll %d", m.order, m.scroll)
		if m.model != "" {
			got += fmt.Sprintf(", model %q", m.model)
		}
		if m.filter != "" {
			got += fmt.Sprintf(", filter %q", m.filter)
		}
		if m.typing {
			got += ", typing"
		}
		if m.help {
			got += ", help"
		}
		if got != c.want {
			t.Errorf("after %s: %s, want %s", c.keys, got, c.want)
		}
	}
	for _, keys := range []string{"q", "ctrl+c", "/ a ctrl+c", "? q"} {
		if _, quits := press(t, m, keys); !quits {
			t.Errorf("%s does not quit", keys)
		}
	}
	long, _ := press(t, m, "/ "+strings.Repeat("y ", 2*maxFilter))
	if len(long.filter) != maxFilter {
		t.Errorf("a filter of %d bytes", len(long.filter))
	}
}

// TestReplicasLeave: the view does not stay below the end of a list that has become shorter, nor at a model
// that is gone.
func TestReplicasLeave(t *testing.T) {
	m := update(update(New(t.Context(), Config{}), fleet(100)), tea.WindowSizeMsg{Width: 80, Height: 24})
	m, _ = press(t, m, "G")
	m = update(m, fleet(4))
	if text := Draw(m).String(); !strings.Contains(text, "\nr0 ") {
		t.Errorf("the only replicas are not shown:\n%s", text)
	}
	m, _ = press(t, m, "tab")
	last := fleet(4)
	last.Status.Models = last.Status.Models[:1]
	if text := Draw(update(m, last)).String(); !strings.Contains(text, "llama-3.1-8b") {
		t.Errorf("a model that is gone is shown:\n%s", text)
	}
}

// polls counts requests.
type polls struct {
	n      int
	answer Answer
}

func (p *polls) Poll(context.Context) Answer { p.n++; return p.answer }

// TestPolls: there is one request at first, and one after each pause, which grows with how long answers take.
func TestPolls(t *testing.T) {
	p := &polls{answer: fleet(2)}
	m := New(t.Context(), Config{Source: p, Every: time.Second})
	msg := m.Init()()
	if _, ok := msg.(Answer); !ok || p.n != 1 {
		t.Fatalf("the first message is %T after %d requests", msg, p.n)
	}
	next, cmd := m.Update(msg)
	if m = next.(Model); cmd == nil || p.n != 1 {
		t.Fatal("nothing follows an answer, or a request at once")
	}
	if _, cmd = m.Update(pollNow{}); cmd == nil {
		t.Fatal("no request when it is time")
	}
	if cmd(); p.n != 2 {
		t.Errorf("%d requests", p.n)
	}
	for _, c := range []struct{ every, took, want time.Duration }{
		{time.Second, 10 * time.Millisecond, time.Second}, {0, 0, MinEvery}, {time.Second, time.Second, 9 * time.Second},
	} {
		if got := New(t.Context(), Config{Every: c.every}).pause(Answer{Took: c.took}); got != c.want {
			t.Errorf("every %v, took %v: pause of %v, want %v", c.every, c.took, got, c.want)
		}
	}
	for _, key := range []string{"s", "tab", "/"} {
		if _, cmd := m.Update(tea.KeyPressMsg{Code: rune(key[0]), Text: key}); cmd != nil {
			t.Errorf("the key %s causes a command", key)
		}
	}
}

// TestAwayAndBack: while no control plane answers, what it said last stays, with since when; the next answer
// ends that.
func TestAwayAndBack(t *testing.T) {
	m := update(New(t.Context(), Config{}), Answer{Err: errors.New("refused"), At: noon, Control: "c"})
	if text := Draw(m).String(); !strings.Contains(text, "NO ANSWER") || !strings.Contains(text, "since 12:00:00 (0 s): refused") {
		t.Errorf("never an answer:\n%s", text)
	}
	m = update(m, fleet(8))
	if s := Show(m); s.Verdict != control.Well || s.AwaySince != nil {
		t.Errorf("an answer: %+v", s)
	}
	for i := range 3 {
		m = update(m, Answer{Err: fmt.Errorf("error %d", i), At: noon.Add(time.Duration(i+1) * time.Minute)})
	}
	s := Show(m)
	if s.Verdict != Away || !s.AwaySince.Equal(noon.Add(time.Minute)) || s.Error != "error 2" || len(s.Replicas) != 8 {
		t.Errorf("three failures: %+v", s)
	}
	if text := Draw(m).String(); !strings.Contains(text, "3 min old") {
		t.Errorf("the age of what is shown is missing:\n%s", text)
	}
	if s := Show(update(m, fleet(8).fault(true))); s.Verdict != control.NotReady || s.AwaySince != nil || s.Error != "" {
		t.Errorf("back: %+v", s)
	}
}

// TestPresent: the replicas that are wanted stand beside those that count for that, without drained ones.
func TestPresent(t *testing.T) {
	a := fleet(8)
	a.Status.Models[0].Scaling.Present = 7
	if s := Show(update(New(t.Context(), Config{}), a)); s.Present != 7 || s.Desired != 9 || len(s.Replicas) != 8 {
		t.Errorf("%d of %d, %d shown", s.Present, s.Desired, len(s.Replicas))
	}
	a.Status.Models[0].Scaling = nil
	if s := Show(update(New(t.Context(), Config{}), a)); s.Present != 8 || s.Desired != 0 {
		t.Errorf("before it is known: %d of %d", s.Present, s.Desired)
	}
}

// TestTones: the verdict and what needs attention stand out also by words, and by styles.
func TestTones(t *testing.T) {
	m := update(New(t.Context(), Config{}), fleet(8).fault(true))
	tones := map[string]tone{}
	for _, l := range Draw(m.Size(120, 40)) {
		for _, s := range l {
			tones[strings.TrimSpace(s.text)] = s.tone
		}
	}
	for text, want := range map[string]tone{"NOT READY": badge, "draining": warning, "unhealthy": bad, "healthy": plain, "refuses": bad, "current": good} {
		if got, ok := tones[text]; !ok || got != want {
			t.Errorf("%q has tone %v (%v), want %v", text, got, ok, want)
		}
	}
	if v := m.View(); !v.AltScreen || !strings.Contains(v.Content, "\x1b[") {
		t.Error("the view has no styles, or is not a screen of its own")
	}
}

// TestAxis checks cells on the axis, and that each of eight stages has one although they are close.
func TestAxis(t *testing.T) {
	for _, c := range []struct {
		length, limit policies.Tokens
		want          int
	}{{0, 1024, 0}, {16, 1024, 0}, {32, 1024, 10}, {128, 1024, 30}, {1024, 1024, 60}, {4096, 1024, 60}, {100, 16, 0}} {
		if got := axisCell(c.length, c.limit, 60); got != c.want {
			t.Errorf("%d of %d is at cell %d, want %d", c.length, c.limit, got, c.want)
		}
	}
	var stages []Stage
	for i := range 8 {
		high := policies.Tokens(10_001 + i)
		stages = append(stages, Stage{Name: fmt.Sprint("s", i), Low: high - 1, High: &high})
	}
	stages[0].Low = 0
	for _, width := range []int{40, 80, 200} {
		d := drawing{m: New(t.Context(), Config{}).Size(width, 24), shown: Shown{Stages: stages, Context: 10_100}}
		axis := d.axis()
		if n := strings.Count(Frame(axis[:1]).String(), "┼"); n != 7 || axis[0].width() > width {
			t.Errorf("%d boundaries of 7 in %d cells:\n%s", n, width, axis)
		}
	}
}

// BenchmarkLargeFleet is a key and its frame, with 10,000 replicas.
func BenchmarkLargeFleet(b *testing.B) {
	m := update(New(b.Context(), Config{}), fleet(10_000))
	for b.Loop() {
		m, _ = press(b, m, "s")
		Draw(m)
	}
}

// TestOrders: names and orders are inverse, and unknown names say which there are.
func TestOrders(t *testing.T) {
	for o := range Order(orders) {
		if got, err := ParseOrder(o.String()); err != nil || got != o {
			t.Errorf("%v: %v, %v", o, got, err)
		}
	}
	_, err := ParseOrder("size")
	testkit.WantError(t, err, `"size": must be one of stage, load, waiting, iteration, name`)
}

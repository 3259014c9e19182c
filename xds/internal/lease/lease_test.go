package lease

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scenarios in testdata")

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestScenarios plays testdata/*.txt. Each control plane ticks four times a
// second, writes what is due and sees what others wrote at once. A line
// "> command" is played, the lines below it up to the next blank one are what
// happens:
//
//	> servers a b              who there is, in the order in which they tick
//	> start a                  it begins, or begins anew
//	> stop a                   it is gone: no tick, no write
//	> for 3s                   time passes
//	> writes of a fail|lost|work  fail: not stored; lost: stored, and told as not
//	> edit b                   somebody else writes the object, the lease in it
//	> clock of a -1h           its clock shows another time
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the scenario went differently (run with -update and read the diff):\n%s", got)
		})
	}
}

func play(t *testing.T, text string) string {
	w := &world{t: t, now: start, by: map[string]*server{}}
	var out strings.Builder
	expected := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		command, ok := strings.CutPrefix(line, "> ")
		switch {
		case ok:
			w.out.Reset()
			w.do(strings.Fields(command))
			out.WriteString(line + "\n" + w.out.String())
			expected = true
		case line == "":
			expected = false
			out.WriteString("\n")
		case expected:
		default:
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// world is a store and the control planes around it.
type world struct {
	t      *testing.T
	now    time.Time
	order  []*server
	by     map[string]*server
	stored Lease
	out    strings.Builder
}

type server struct {
	name   string
	m      *Machine // nil: not there
	writes string
	off    time.Duration
	led    bool
}

func (w *world) do(f []string) {
	switch f[0] {
	case "servers":
		for _, name := range f[1:] {
			s := &server{name: name, writes: "work"}
			w.order, w.by[name] = append(w.order, s), s
		}
	case "start":
		s := w.by[f[1]]
		m, err := New(Config{Self: s.name})
		if err != nil {
			w.t.Fatal(err)
		}
		s.m, s.led = m, false
		m.Saw(w.clock(s), w.stored)
		w.tick(s)
	case "stop":
		w.by[f[1]].m = nil
		w.by[f[1]].led = false
	case "for":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			w.t.Fatal(err)
		}
		for end := w.now.Add(d); w.now.Before(end); {
			w.now = w.now.Add(250 * time.Millisecond)
			for _, s := range w.order {
				w.tick(s)
			}
		}
	case "writes":
		w.by[f[2]].writes = f[3]
	case "edit":
		w.store(w.by[f[1]], Lease{f[1], w.now})
	case "clock":
		d, err := time.ParseDuration(f[3])
		if err != nil {
			w.t.Fatal(err)
		}
		w.by[f[2]].off = d
	default:
		w.t.Fatalf("unknown command %q", f)
	}
}

func (w *world) clock(s *server) time.Time { return w.now.Add(s.off) }

func (w *world) tick(s *server) {
	if s.m == nil {
		return
	}
	now := w.clock(s)
	if s.m.Due(now) {
		l := s.m.Try(now)
		switch s.writes {
		case "fail":
			w.say("%s is refused", s.name)
			s.m.Refused(now)
		case "lost":
			s.m.Refused(now)
			w.store(nil, l)
		default:
			s.m.Wrote()
			w.store(s, l)
		}
	}
	if leads := s.m.Leads(now); leads != s.led {
		s.led = leads
		w.say("%s %s", s.name, map[bool]string{true: "leads", false: "does not lead any more"}[leads])
	}
}

// store puts a lease where everybody but its writer sees it.
func (w *world) store(by *server, l Lease) {
	w.stored = l
	for _, s := range w.order {
		if s != by && s.m != nil {
			s.m.Saw(w.clock(s), l)
			if s.m.Doubled() {
				w.say("%s has the name of another", s.name)
			}
		}
	}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.out, "%v %s\n", w.now.Sub(start), fmt.Sprintf(format, args...))
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Self: "a", Term: time.Second, Renew: time.Second}, {Self: "a", Term: -1}, {Self: "a", Renew: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	m, err := New(Config{Self: "a", Term: time.Second})
	if err != nil || m.c.Renew != time.Second/3 {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestOneLeads plays random fates to control planes whose clocks run at
// different rates and show different times: pauses, slow, lost and failing
// writes, and watches that lag. At no moment do two of them believe that they
// lead; and whenever all goes well for a while, one does.
func TestOneLeads(t *testing.T) {
	for seed := range uint64(150) {
		oneLeads(t, seed)
	}
}

// node is a control plane of the random world. Its clock shows base + rate·t.
type node struct {
	m       *Machine
	name    string
	base    time.Time
	rate    float64
	lag     time.Duration // of its watch
	paused  time.Duration // until then it does nothing
	version int           // of the object that it knows
	seen    int           // versions that its watch has told
	write   *write        // on its way
}

type write struct {
	lease         Lease
	old           int
	commit, reply time.Duration
	fate          int // 0 works, 1 is not stored, 2 is stored and told as not
	done, stored  bool
	version       int
}

type version struct {
	lease Lease
	at    time.Duration
}

func (n *node) clock(t time.Duration) time.Time {
	return n.base.Add(time.Duration(float64(t) * n.rate))
}

func oneLeads(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	versions := []version{{}}
	var nodes []*node
	for i := range 3 {
		n := &node{
			name: string(rune('a' + i)), rate: 0.85 + 0.4*rng.Float64(), lag: time.Duration(rng.IntN(300)) * time.Millisecond,
			base: start.Add(time.Duration(rng.IntN(7200)-3600) * time.Second), seen: -1,
		}
		n.m, _ = New(Config{Self: n.name})
		nodes = append(nodes, n)
	}
	quiet := time.Duration(0) // since when nothing bad happens
	const step = 25 * time.Millisecond
	for now := time.Duration(0); now < 90*time.Second; now += step {
		calm := now%(30*time.Second) > 15*time.Second
		if !calm {
			quiet = now
		}
		leaders := ""
		for _, n := range nodes {
			n.live(rng, now, calm, &versions)
			if n.m.Leads(n.clock(now)) {
				leaders += n.name
			}
		}
		if len(leaders) > 1 {
			t.Fatalf("seed %d: at %v both of %q lead", seed, now, leaders)
		}
		// The last bad thing may be a pause or a slow write of 5 s.
		if leaders == "" && now-quiet > 13*time.Second {
			t.Fatalf("seed %d: at %v nobody leads, and nothing has gone wrong since %v", seed, now, quiet)
		}
	}
}

// live is one step of a node.
func (n *node) live(rng *rand.Rand, now time.Duration, calm bool, versions *[]version) {
	if w := n.write; w != nil && !w.done && now >= w.commit {
		w.done = true
		if w.fate != 1 && w.old == len(*versions)-1 {
			*versions = append(*versions, version{w.lease, now})
			w.stored, w.version = true, len(*versions)-1
		}
	}
	if now < n.paused {
		return
	}
	if !calm && rng.IntN(200) == 0 {
		n.paused = now + time.Duration(rng.IntN(5000))*time.Millisecond
	}
	if !calm && rng.IntN(400) == 0 { // it dies, and comes back as if it had never been
		n.m, _ = New(Config{Self: n.name})
		n.write, n.seen, n.version = nil, -1, 0
		n.paused = now + time.Duration(rng.IntN(4000))*time.Millisecond
		return
	}
	clock := n.clock(now)
	if w := n.write; w != nil {
		if now < w.reply {
			return // the loop waits for the store
		}
		n.write = nil
		if w.stored && w.fate == 0 {
			n.version = w.version
			n.seen = max(n.seen, w.version)
			n.m.Wrote()
		} else {
			n.m.Refused(clock)
		}
	}
	for v := n.seen + 1; v < len(*versions) && now-(*versions)[v].at >= n.lag; v++ {
		n.seen = v
		if v > n.version || v == 0 {
			n.version = v
			n.m.Saw(clock, (*versions)[v].lease)
		}
	}
	if n.seen < 0 || now%(250*time.Millisecond) != 0 {
		return
	}
	if n.m.Due(clock) {
		w := &write{lease: n.m.Try(clock), old: n.version, commit: now, reply: now}
		if !calm {
			w.commit = now + time.Duration(rng.IntN(400))*time.Millisecond
			if rng.IntN(10) == 0 {
				w.commit += time.Duration(rng.IntN(4000)) * time.Millisecond
			}
			w.reply = w.commit + time.Duration(rng.IntN(200))*time.Millisecond
			w.fate = max(0, rng.IntN(8)-5)
		}
		n.write = w
	}
}

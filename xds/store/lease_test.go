package store

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestLeaseScenarios runs testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output). Each control plane ticks four times a second, writes the lease
// when it is due and sees at once what the others write.
//
//	servers a b              declares them, in the order in which they tick
//	start a                  a starts, or restarts
//	stop a                   a stops: no tick, no write
//	for 3s                   time passes
//	writes of a fail|lost|work  fail: not stored; lost: stored, but reported as failed
//	edit b                   an operator writes the object with a lease for b
//	clock of a -1h           sets the clock of a that much off
func TestLeaseScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		c := &cluster{t: t, now: start, byName: map[string]*server{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c.out.Reset()
			c.do(d)
			return c.out.String()
		})
	})
}

// cluster is a store and the control planes that share it.
type cluster struct {
	t      *testing.T
	now    time.Time
	order  []*server
	byName map[string]*server
	stored Lease
	out    strings.Builder
}

type server struct {
	name   string
	m      *LeaseMachine // nil: stopped
	writes string
	offset time.Duration // of its clock
	led    bool
}

func (c *cluster) do(d *datadriven.TestData) {
	f := []string{d.Cmd}
	for _, arg := range d.CmdArgs {
		f = append(f, arg.String())
	}
	switch f[0] {
	case "servers":
		for _, name := range f[1:] {
			s := &server{name: name, writes: "work"}
			c.order, c.byName[name] = append(c.order, s), s
		}
	case "start":
		s := c.byName[f[1]]
		s.m, s.led = NewLeaseMachine(s.name), false
		s.m.Observe(c.clock(s), c.stored)
		c.tick(s)
	case "stop":
		c.byName[f[1]].m = nil
		c.byName[f[1]].led = false
	case "for":
		length, err := time.ParseDuration(f[1])
		if err != nil {
			d.Fatalf(c.t, "%v", err)
		}
		for end := c.now.Add(length); c.now.Before(end); {
			c.now = c.now.Add(250 * time.Millisecond)
			for _, s := range c.order {
				c.tick(s)
			}
		}
	case "writes":
		c.byName[f[2]].writes = f[3]
	case "edit":
		c.store(c.byName[f[1]], Lease{f[1], c.now})
	case "clock":
		offset, err := time.ParseDuration(f[3])
		if err != nil {
			d.Fatalf(c.t, "%v", err)
		}
		c.byName[f[2]].offset = offset
	default:
		d.Fatalf(c.t, "unknown command %q", d.Cmd)
	}
}

func (c *cluster) clock(s *server) time.Time { return c.now.Add(s.offset) }

func (c *cluster) tick(s *server) {
	if s.m == nil {
		return
	}
	now := c.clock(s)
	if s.m.WriteDue(now) {
		l := s.m.Next(now)
		switch s.writes {
		case "fail":
			c.say("%s: write failed", s.name)
			s.m.WriteFailed(now)
		case "lost":
			s.m.WriteFailed(now)
			c.store(nil, l)
		default:
			s.m.Written()
			c.store(s, l)
		}
	}
	if leads := s.m.Leads(now); leads != s.led {
		s.led = leads
		c.say("%s %s", s.name, map[bool]string{true: "leads", false: "stopped leading"}[leads])
	}
}

// store writes a lease and delivers it to all control planes except the writer.
func (c *cluster) store(by *server, l Lease) {
	c.stored = l
	for _, s := range c.order {
		if s != by && s.m != nil {
			s.m.Observe(c.clock(s), l)
			if s.m.NameTaken() {
				c.say("%s: another control plane has its name", s.name)
			}
		}
	}
}

func (c *cluster) say(format string, args ...any) {
	fmt.Fprintf(&c.out, "%v %s\n", c.now.Sub(start), fmt.Sprintf(format, args...))
}

// TestOneLeads runs control planes whose clocks run at different rates and show
// different times, with random pauses, slow, lost and failing writes, and lagging
// watches. At no moment do two of them believe that they lead, and after a while
// without faults one of them does.
func TestOneLeads(t *testing.T) {
	for seed := range uint64(150) {
		oneLeads(t, seed)
	}
}

// node is a control plane of the random test. Its clock shows base + rate·t.
type node struct {
	m       *LeaseMachine
	name    string
	base    time.Time
	rate    float64
	lag     time.Duration // of its watch
	paused  time.Duration // the node does nothing until then
	version int           // of the object that it knows
	seen    int           // versions that its watch has delivered
	write   *write        // in progress
	issued  map[Lease]bool
}

// start begins a process of the control plane, which knows nothing.
func (n *node) start() {
	n.m, n.issued = NewLeaseMachine(n.name), make(map[Lease]bool)
	n.write, n.seen, n.version = nil, -1, 0
}

type write struct {
	lease         Lease
	old           int
	commit, reply time.Duration
	fate          int // 0 works, 1 is not stored, 2 is stored and reported as failed
	done, stored  bool
	version       int
}

type simVersion struct {
	lease Lease
	at    time.Duration
}

func (n *node) clock(t time.Duration) time.Time {
	return n.base.Add(time.Duration(float64(t) * n.rate))
}

func oneLeads(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	versions := []simVersion{{}}
	var nodes []*node
	for i := range 3 {
		n := &node{
			name: string(rune('a' + i)), rate: 0.85 + 0.4*rng.Float64(), lag: time.Duration(rng.IntN(900)) * time.Millisecond,
			base: start.Add(time.Duration(rng.IntN(7200)-3600) * time.Second),
		}
		n.start()
		nodes = append(nodes, n)
	}
	quiet := time.Duration(0) // when the last fault happened
	const step = 25 * time.Millisecond
	for now := time.Duration(0); now < 90*time.Second; now += step {
		calm := now%(30*time.Second) > 15*time.Second
		if !calm {
			quiet = now
		}
		leaders := ""
		for _, n := range nodes {
			n.step(rng, now, calm, &versions)
			if n.m.Leads(n.clock(now)) {
				leaders += n.name
			}
			if n.m.NameTaken() && n.issued[n.m.stored] {
				t.Fatalf("seed %d: at %v %s takes its own lease for that of another control plane", seed, now, n.name)
			}
		}
		if len(leaders) > 1 {
			t.Fatalf("seed %d: at %v both of %q lead", seed, now, leaders)
		}
		// The last fault may be a pause or a slow write of 5 s.
		if leaders == "" && now-quiet > 13*time.Second {
			t.Fatalf("seed %d: at %v no control plane leads, and nothing has gone wrong since %v", seed, now, quiet)
		}
	}
}

// step simulates one step of a node.
func (n *node) step(rng *rand.Rand, now time.Duration, calm bool, versions *[]simVersion) {
	if w := n.write; w != nil && !w.done && now >= w.commit {
		w.done = true
		if w.fate != 1 && w.old == len(*versions)-1 {
			*versions = append(*versions, simVersion{w.lease, now})
			w.stored, w.version = true, len(*versions)-1
		}
	}
	if now < n.paused {
		return
	}
	if !calm && rng.IntN(200) == 0 {
		n.paused = now + time.Duration(rng.IntN(5000))*time.Millisecond
	}
	if !calm && rng.IntN(400) == 0 { // the node crashes and restarts without any state
		n.start()
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
			n.m.Written()
		} else {
			n.m.WriteFailed(clock)
		}
	}
	for v := n.seen + 1; v < len(*versions) && now-(*versions)[v].at >= n.lag; v++ {
		n.seen = v
		if v > n.version || v == 0 {
			n.version = v
			n.m.Observe(clock, (*versions)[v].lease)
		}
	}
	if n.seen < 0 || now%(250*time.Millisecond) != 0 {
		return
	}
	if n.m.WriteDue(clock) {
		w := &write{lease: n.m.Next(clock), old: n.version, commit: now, reply: now}
		n.issued[w.lease] = true
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

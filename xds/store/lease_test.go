package store

import (
	"fmt"
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

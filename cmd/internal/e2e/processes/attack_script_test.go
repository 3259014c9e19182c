package processes

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackScripts plays the scripts in testdata against one fleet. The commands are
//
//	send PORT…                 the attack, on one connection to each port
//	send PORT… half-closed     which the attacker closes for writing afterwards
//	hold N PORT…               the attack on N connections that stay open; is another client served?
//	hold N PORT… one-address   which come from that client's own address
//	flood N PORT… MOST         the attack on N connections at once: at most MOST hang in the engine, the rest get 429
//	unread N PORT…             the attack on N connections that read nothing of the answers, until the engine
//	                           gets no more of them: does the replica count as idle, and is another client served?
//	unread N PORT… one-connection  which are streams of one HTTP/2 connection with windows of 0
//	refuse N xds               N proxies that the fleet does not have refuse all that they are sent
//	impersonate xds            a local user calls in plain text as a part of the fleet: "proxy edge", "loads edge"
//	                           or "replica r0"; the status of the call
//	peak DAEMON… MIB           the most memory that a daemon has used so far is below so much
//	log DAEMON… N              a daemon has logged at most so many lines so far
//
// The first line of their input, after "# ", names the attack; the rest are its bytes (request).
// An outcome has a line per port, or one line if it is the same at all of them. Scripts whose
// name begins with "slow" are played with CASCADE_TEST_ALL only.
func TestAttackScripts(t *testing.T) {
	f := newAttackedFleet(t, 1)
	files := testkit.Must(filepath.Glob("testdata/*.txt"))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				if strings.HasPrefix(name, "slow") && !everything {
					return d.Expected
				}
				return f.play(t, d)
			})
		})
	}
	for name, d := range f.daemons {
		if !d.Running() {
			t.Errorf("%s has ended", name)
		}
	}
}

// attackOf divides the input of a directive.
func attackOf(d *datadriven.TestData) (name, text string, err error) {
	head, text, _ := strings.Cut(d.Input, "\n")
	name, found := strings.CutPrefix(head, "# ")
	if !found && d.Cmd != "peak" && d.Cmd != "log" {
		return "", "", fmt.Errorf("%s: the input must begin with the attack's name, after \"# \"", d.Pos)
	}
	return name, text, nil
}

// play runs one directive and returns its outcome.
func (f *attackedFleet) play(t *testing.T, d *datadriven.TestData) string {
	name, text, err := attackOf(d)
	testkit.NoError(t, err)
	words := testkit.Words(d)[1:]
	attack, err := request(text)
	testkit.NoError(t, err)
	if text == "" {
		attack = nil
	}
	n, most, halfClosed, oneConnection, dial := 0, 0, false, false, attacker
	var ports, outcomes []string
	for _, w := range words {
		switch number, err := strconv.Atoi(w); {
		case err == nil && n > 0:
			most = number
		case err == nil:
			n = number
		case w == "one-connection":
			oneConnection = true
		case w == "half-closed":
			halfClosed = true
		case w == "one-address":
			dial.LocalAddr = nil
		default:
			ports = append(ports, w)
		}
	}
	for _, port := range ports {
		var outcome string
		switch d.Cmd {
		case "send":
			const hung = "engine makes no progress"
			before := f.daemons["front"].Log.Count(hung)
			outcome, err = exchange(f.address(t, port), attack, halfClosed)
			if err == nil && outcome == "503" && f.daemons["front"].Log.Count(hung) > before {
				t.Logf("%s: the engine counted as hung, as on a busy host; the attack is sent once more", port)
				time.Sleep(time.Second)
				outcome, err = exchange(f.address(t, port), attack, halfClosed)
			}
		case "hold":
			outcome, err = f.hold(dial, port, n, attack)
		case "flood":
			outcome, err = f.flood(port, n, most, attack)
		case "unread":
			outcome, err = f.leaveUnread(port, n, oneConnection, attack)
		case "refuse":
			outcome, err = f.refuse(t.Context(), n)
		case "impersonate":
			outcome, err = f.impersonate(t.Context(), strings.Fields(text))
		case "peak":
			outcome = fmt.Sprintf("below %d", n)
			pid := f.envoy.PID()
			if port != "envoy" {
				pid = f.daemons[port].PID()
			}
			peak := harness.Peak(t, pid) >> 20
			if peak >= int64(n) {
				outcome = fmt.Sprint(peak)
			}
			t.Logf("peak of %s: %d MiB", port, peak)
		case "log":
			outcome = fmt.Sprintf("at most %d", n)
			if lines := f.daemons[port].Log.Count("\n"); lines > n {
				outcome = fmt.Sprint(lines)
			}
		default:
			t.Fatalf("%s: no such command: %s", d.Pos, d.Cmd)
		}
		if err != nil {
			t.Fatalf("%s: %s at %s: %v", d.Pos, name, port, err)
		}
		if seen := f.engines[0].take(); len(seen) > 0 {
			outcome += "; engine saw evil in " + strings.Join(seen, ", ")
		}
		outcomes = append(outcomes, outcome)
	}
	return summarize(ports, outcomes)
}

// summarize returns a line for the ports of each outcome.
func summarize(ports, outcomes []string) string {
	var out strings.Builder
	for i, outcome := range outcomes {
		if slices.Index(outcomes, outcome) < i {
			continue
		}
		var same []string
		for j, port := range ports {
			if outcomes[j] == outcome {
				same = append(same, port)
			}
		}
		fmt.Fprintf(&out, "%s: %s\n", strings.Join(same, ", "), outcome)
	}
	return out.String()
}

func (f *attackedFleet) address(t *testing.T, port string) string {
	t.Helper()
	if f.ports[port] == "" {
		t.Fatalf("no such port: %s", port)
	}
	return f.ports[port]
}

// open opens n connections with an attack on each.
func (f *attackedFleet) open(from net.Dialer, port string, n int, attack []byte) (conns []net.Conn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range conns {
			c.Close()
		}
	}
	for range n {
		c, err := dial(from, f.ports[port])
		if err != nil {
			return conns, closeAll, err
		}
		conns = append(conns, c)
		c.SetDeadline(time.Now().Add(attackPatience))
		c.Write(attack) // the port may have closed the connection: that is an outcome, too
	}
	return conns, closeAll, nil
}

// hold opens n connections with an attack on each, and reports whether another client is served
// while they are open.
func (f *attackedFleet) hold(from net.Dialer, port string, n int, attack []byte) (string, error) {
	_, closeAll, err := f.open(from, port, n, attack)
	defer closeAll()
	if err != nil {
		return "", err
	}
	if err := f.served(port); err != nil {
		return "another client is not served", nil
	}
	return "another client is served", nil
}

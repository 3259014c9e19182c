package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// everything makes the slow attacks run, too.
var everything = os.Getenv("CASCADE_TEST_ALL") != ""

// TestAttackScripts plays the scripts in testdata against one fleet. The commands are
//
//	send PORT…                 the attack, on one connection to each port
//	send PORT… half-closed     which the attacker closes for writing afterwards
//	hold N PORT…               the attack on N connections that stay open; is another client served?
//	hold N PORT… one-address   which come from that client's own address
//	refuse N xds               N proxies that the fleet does not have refuse all that they are sent
//	peak DAEMON… MIB           the most memory that a daemon has used so far is below so much
//	log DAEMON… N              a daemon has logged at most so many lines so far
//
// The first line of their input, after "# ", names the attack; the rest are its bytes (request).
// An outcome has a line per port, or one line if it is the same at all of them. Scripts whose
// name begins with "slow" are played with CASCADE_TEST_ALL only.
func TestAttackScripts(t *testing.T) {
	f := newFleet(t)
	var table strings.Builder
	table.WriteString(tableHead)
	files := testkit.Must(filepath.Glob("testdata/*.txt"))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		fmt.Fprintf(&table, "\n## %s\n\n| attack | at | outcome |\n|---|---|---|\n", strings.ToUpper(name[:1])+strings.ReplaceAll(name[1:], "_", " "))
		t.Run(name, func(t *testing.T) {
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				if strings.HasPrefix(name, "slow") && !everything {
					appendRows(&table, d, d.Expected)
					return d.Expected
				}
				out := f.play(t, d)
				appendRows(&table, d, out)
				return out
			})
		})
	}
	table.WriteString(packageTests(t))
	if !t.Failed() {
		testkit.CompareGolden(t, "README.md", []byte(table.String()))
	}
	for name, d := range f.daemons {
		if !d.Running() {
			t.Errorf("%s has ended", name)
		}
	}
}

const tableHead = `# What has been attacked

` + "`make attack`" + ` sends these to a running fleet, and runs every test of the repository whose name begins
with TestAttack. The tests write this table. Ports are those of the front end of a replica (front, and peer for other
migrators), its KV transport (kv), the embedded proxy, Envoy, the control plane (xds, admin), and the admin
ports of the migrator and the proxy. An outcome is the statuses of all answers on the attacker's connection; "engine saw
evil" would name what came through. The tests of packages, below, attack what one
fleet on one host does not have: keys, identities, other users, broken peers.
`

// appendRows adds a directive and its outcome to the table.
func appendRows(table *strings.Builder, d *datadriven.TestData, outcome string) {
	name, _, _ := attackOf(d)
	for line := range strings.Lines(outcome) {
		ports, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		fmt.Fprintf(table, "| %s | %s | %s |\n", strings.ReplaceAll(name, "|", `\|`), ports, result)
	}
}

// attackOf divides the input of a directive.
func attackOf(d *datadriven.TestData) (name, text string, err error) {
	head, text, _ := strings.Cut(d.Input, "\n")
	name, found := strings.CutPrefix(head, "# ")
	switch d.Cmd {
	case "peak":
		return "Peak memory after all of the above, in MiB", "", nil
	case "log":
		return "Lines logged about all of the above", "", nil
	}
	if !found {
		return "", "", fmt.Errorf("%s: the input must begin with the attack's name, after \"# \"", d.Pos)
	}
	return name, text, nil
}

// play runs one directive and returns its outcome.
func (f *fleet) play(t *testing.T, d *datadriven.TestData) string {
	name, text, err := attackOf(d)
	testkit.NoError(t, err)
	words := testkit.Words(d)[1:]
	attack, err := request(text)
	testkit.NoError(t, err)
	if text == "" {
		attack = nil
	}
	n, halfClosed, dial := 0, false, attacker
	var ports, outcomes []string
	for _, w := range words {
		switch number, err := strconv.Atoi(w); {
		case err == nil:
			n = number
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
			outcome, err = exchange(f.address(t, port), attack, halfClosed)
		case "hold":
			outcome, err = f.hold(dial, port, n, attack)
		case "refuse":
			outcome, err = f.refuse(t.Context(), n)
		case "peak":
			outcome = fmt.Sprintf("below %d", n)
			if peak := f.daemons[port].Peak() >> 20; peak >= int64(n) {
				outcome = fmt.Sprint(peak)
			}
			t.Logf("peak of %s: %d MiB", port, f.daemons[port].Peak()>>20)
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
		if seen := f.engine.take(); len(seen) > 0 {
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

func (f *fleet) address(t *testing.T, port string) string {
	t.Helper()
	if f.ports[port] == "" {
		t.Fatalf("no such port: %s", port)
	}
	return f.ports[port]
}

// hold opens n connections with an attack on each, and reports whether another client is served
// while they are open.
func (f *fleet) hold(dial net.Dialer, port string, n int, attack []byte) (string, error) {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := dial.Dial("tcp", f.ports[port])
		if err != nil {
			return "", err
		}
		conns = append(conns, c)
		c.SetDeadline(time.Now().Add(patience))
		c.Write(attack) // the port may have closed the connection: that is an outcome, too
	}
	if err := f.served(port); err != nil {
		return "another client is not served", nil
	}
	return "another client is served", nil
}

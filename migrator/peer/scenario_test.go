package peer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/policies"
)

// TestScenarios runs every testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output) in virtual time. A process is called by its replica's name, and by its
// number unless it is the first. Each command prints what the processes have reported and
// received since the last one. The commands:
//
//	start b2 [unreached]  starts a process, whose replica's address leads to it from then on,
//	                      unless it is unreached; all processes know all addresses
//	reach b               the replica's address leads to this process
//	mute b                serves b by a process that sends Hello, and then reads nothing
//	know a b              a knows the address of b only; b=c: that it is c's; know a: of none
//	watch a b c           a watches b and c; watch a: nothing
//	send a b 7            a sends envelope 7 to b
//	stop b | kill b       ends a process; killed, its address refuses connections
//	freeze b | thaw b     the replica's host stands still
//	for 3s                time passes
//	state a b             prints what a knows of b
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := &scenario{network: newNetwork(t), nodes: make(map[string]*node), reached: make(map[string]*bufconn.Listener), thaw: make(map[string]func())}
			datadriven.RunTest(t, path, s.do)
		})
	})
}

type scenario struct {
	*network
	names   []string // of processes, by start
	nodes   map[string]*node
	reached map[string]*bufconn.Listener // by process
	thaw    map[string]func()            // by replica
}

func addressOf(replica string) string { return replica + ":1" }

func (s *scenario) do(t *testing.T, d *datadriven.TestData) string {
	var args []string
	for _, arg := range d.CmdArgs {
		args = append(args, arg.Key)
	}
	name := args[0]
	replica, process := name[:1], s.nodes[name]
	var out strings.Builder
	switch d.Cmd {
	case "start":
		incarnation, _ := strconv.ParseUint("0"+name[1:], 10, 64)
		before := s.listeners[addressOf(replica)]
		s.nodes[name] = s.node(t, replica, addressOf(replica), max(incarnation, 1))
		s.names, s.reached[name] = append(s.names, name), s.listeners[addressOf(replica)]
		if d.HasArg("unreached") {
			s.setListener(addressOf(replica), before)
		}
		all := make([]*node, 0, len(s.names))
		for _, name := range s.names {
			all = append(all, s.nodes[name])
		}
		setAllPeers(all...)
	case "reach":
		s.setListener(addressOf(replica), s.reached[name])
	case "mute":
		s.serve(t, addressOf(replica), muteServer{})
	case "know":
		known := make(map[policies.ReplicaID]string)
		for _, arg := range d.CmdArgs[1:] {
			known[policies.ReplicaID(arg.Key)] = addressOf(append(arg.Vals, arg.Key)[0])
		}
		process.SetPeers(known)
	case "watch":
		var ids []policies.ReplicaID
		for _, id := range args[1:] {
			ids = append(ids, policies.ReplicaID(id))
		}
		process.Watch(ids)
	case "send":
		number, _ := strconv.ParseUint(args[2], 10, 64)
		process.Send(policies.ReplicaID(args[1]), market(number))
	case "stop":
		process.stop()
	case "kill":
		s.kill(process)
	case "freeze":
		s.thaw[replica] = s.freeze(addressOf(replica))
	case "thaw":
		s.thaw[replica]()
	case "for":
		length, err := time.ParseDuration(name)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		time.Sleep(length)
	case "state":
		p := process.peer(policies.ReplicaID(args[1]))
		fmt.Fprintf(&out, "connected %v, %d incoming, watched %v, gone %v, incarnation %d\n", p.connected, p.incoming, p.watched, p.gone, p.incarnation)
	default:
		d.Fatalf(t, "unknown command")
	}
	synctest.Wait()
	for _, name := range s.names {
		n := s.nodes[name]
		for len(n.gone) > 0 {
			fmt.Fprintf(&out, "%s: %s is gone\n", name, <-n.gone)
		}
		for len(n.back) > 0 {
			fmt.Fprintf(&out, "%s: %s is back\n", name, <-n.back)
		}
		for len(n.came) > 0 {
			g := <-n.came
			fmt.Fprintf(&out, "%s: %d from %s\n", name, g.GetMarket().GetNumber(), g.from)
		}
	}
	return out.String()
}

package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/handover"
)

// takeoverTimeout is how long a process waits for another starting process of the same daemon,
// and for the running process to prepare.
const takeoverTimeout = 30 * time.Second

// upgrade is a process's part in the upgrades of a daemon, a replica's migrator or a proxy: it
// takes over the listeners of the preceding process, and hands them to the next one.
type upgrade struct {
	takeover  *handover.Takeover
	listeners *handover.Listeners
}

// adminListener is the name of a daemon's admin listener in a handover.
const adminListener = "admin"

func runtimeDirFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "runtime-dir", handover.RuntimeDir(), "private directory of the sockets for upgrades")
	c.Flags().Lookup("runtime-dir").DefValue = "$XDG_RUNTIME_DIR/cascade, or cascade-<uid> in the temporary directory"
}

// beginUpgrade begins the takeover. dir holds the Unix sockets by which the processes of a user
// find each other by the daemon's name and address. The caller must call abandon, which does nothing
// after the takeover.
func beginUpgrade(ctx context.Context, dir, name, address string) (*upgrade, error) {
	path, err := handover.Path(dir, name, address)
	if err != nil {
		return nil, fmt.Errorf("--runtime-dir: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	claim, err := handover.Begin(ctx, path)
	if err != nil {
		return nil, err
	}
	return &upgrade{takeover: claim, listeners: &handover.Listeners{}}, nil
}

// predecessor returns the id of the running process, 0 for none.
func (s *upgrade) predecessor() int { return s.takeover.Process }

// abandon leaves the listeners to the running process, unless it has stopped
// accepting.
func (s *upgrade) abandon() { s.takeover.Abandon() }

// listen returns the predecessor's listener if it has one at that address, else a new one.
func (s *upgrade) listen(name, address string) (net.Listener, error) {
	l := s.takeover.TakeListener(name, address)
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s.add(name, l)
}

// add adds a listener to those that a successor takes over, or closes it.
func (s *upgrade) add(name string, l net.Listener) (net.Listener, error) {
	added, err := s.listeners.Add(name, l)
	if err != nil {
		l.Close()
	}
	return added, err
}

// reopen returns a function that opens a listener again after its server has closed it.
func (s *upgrade) reopen(name string) func(network, address string) (net.Listener, error) {
	return func(_, address string) (net.Listener, error) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		return s.add(name, l)
	}
}

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/handover"
	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
)

// takeoverTimeout is how long a process waits for another starting process of the same daemon,
// and for the running process to prepare.
const takeoverTimeout = 30 * time.Second

// Upgrade is a process's part in the upgrades of a daemon, a replica's migrator or a proxy: it
// takes over the listeners of the preceding process, and hands them to the next one.
type Upgrade struct {
	log       *slog.Logger
	takeover  *handover.Takeover
	listeners *handover.Listeners
	server    *handover.Server
}

// RuntimeDirFlag adds --runtime-dir.
func RuntimeDirFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "runtime-dir", handover.RuntimeDir(), "private directory of the sockets for upgrades")
	c.Flags().Lookup("runtime-dir").DefValue = "$XDG_RUNTIME_DIR/cascade, or cascade-<uid> in the temporary directory"
}

// BeginUpgrade begins the takeover. dir holds the Unix sockets by which the processes of a user
// find each other by the daemon's name and address. The caller must call Abandon, which does nothing
// after the takeover.
func (d *Daemon) BeginUpgrade(ctx context.Context, dir, name, address string) (*Upgrade, error) {
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
	return &Upgrade{log: d.Log, takeover: claim, listeners: &handover.Listeners{}}, nil
}

// Predecessor returns the id of the running process, 0 for none.
func (u *Upgrade) Predecessor() int { return u.takeover.Process }

// Abandon leaves the listeners to the running process, unless it has stopped
// accepting.
func (u *Upgrade) Abandon() { u.takeover.Abandon() }

// Listen returns the predecessor's listener if it has one at that address, host:port or @NAME of an abstract Unix
// socket, else a new one. field is the field of the fleet file, or the flag, that has the address.
func (u *Upgrade) Listen(name, field, address string) (net.Listener, error) {
	l := u.takeover.TakeListener(name, address)
	if l == nil {
		var err error
		if l, err = net.Listen(localuser.Network(address), address); err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	return u.add(name, l)
}

// add adds a listener to those that a successor takes over, or closes it.
func (u *Upgrade) add(name string, l net.Listener) (net.Listener, error) {
	added, err := u.listeners.Add(name, l)
	if err != nil {
		l.Close()
	}
	return added, err
}

// Reopen returns a function that opens a listener again after its server has closed it.
func (u *Upgrade) Reopen(name string) func(network, address string) (net.Listener, error) {
	return func(_, address string) (net.Listener, error) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		return u.add(name, l)
	}
}

// Finish stops the predecessor, once this process serves, and notifies systemd. It returns the link to the predecessor, nil
// without one. An error while ctx is done means nothing.
func (u *Upgrade) Finish(ctx context.Context) (before *handover.Link, err error) {
	u.server, before, err = u.takeover.Finish(ctx)
	if err == nil || ctx.Err() != nil {
		cli.NotifySystemd(u.log, cli.SystemdReady)
	}
	return before, err
}

// WaitForSuccessor waits for a successor that serves, and returns the link to it; nil when ctx ends before, or where
// nothing can be handed over. stopped, unless it is nil, is called before the successor begins to accept.
func (u *Upgrade) WaitForSuccessor(ctx context.Context, stopped func()) *handover.Link {
	if u.server == nil {
		<-ctx.Done()
		return nil
	}
	after, err := u.server.Serve(ctx, handover.Config{
		Listeners: u.listeners, Logger: u.log,
		Stopped: func(successor int) {
			cli.NotifySystemd(u.log, cli.MainProcess(successor))
			if stopped != nil {
				stopped()
			}
		},
	})
	switch {
	case err == nil:
		u.log.Info("another process has taken over, this one ends with its last stream")
		return after
	case ctx.Err() == nil:
		u.log.Warn("handover stopped; the next upgrade needs a restart", "error", err)
	}
	return nil
}

package verbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// errDeviceChanged says that another device is to be used.
var errDeviceChanged = errors.New("another device is asked for")

// Transport is one engine's end. It is safe for concurrent use.
type Transport struct {
	config    Config
	source    pull.Source
	receivers ticket.ReceiverCheck
	server    *grpc.Server
	wg        sync.WaitGroup // goroutines of sessions; added to under mu, while ctx is set

	mu       sync.Mutex
	ctx      context.Context // of Run; nil while it does not run
	nic      *nic            // nil while nobody uses it, and after it has failed
	sessions int
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves once it runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		config:    c,
		source:    pull.Source{Transport: "verbs", Pool: c.Pool},
		receivers: ticket.ReceiverCheck{TrustDomain: c.TrustDomain, Transport: "verbs", Logger: c.Logger},
		server:    grpc.NewServer(grpc.MaxRecvMsgSize(max(maxAttach, maxAskBytes+64))),
	}
	t.source.Check = t.requireDevice
	t.server.RegisterService(&service, t)
	return t, nil
}

// Name returns "verbs".
func (t *Transport) Name() string { return "verbs" }

// Probe opens the device, or looks whether its port is active still, and registers the
// engine's pool: what cannot be registered is known before a move, and no move waits
// for it, which takes seconds for a large one.
func (t *Transport) Probe(context.Context) error {
	n, err := t.acquireNIC()
	if err != nil {
		return fmt.Errorf("verbs transport: %w", err)
	}
	if _, err = n.portState(); err == nil {
		err = t.probePool(n)
	}
	if err = errors.Join(err, t.releaseNIC(n)); err != nil {
		return fmt.Errorf("verbs transport: %w", err)
	}
	return nil
}

// probePool says why the engine's pool can neither be registered nor go by way of the
// host. While Run runs it stays registered.
func (t *Transport) probePool(n *nic) error {
	m, ok := t.config.Pool.Memory()
	if !ok || !m.Hold() {
		return nil
	}
	defer m.Release()
	if err := transport.CheckDevice(t.config.Pool); err != nil {
		return err
	}
	far, err := n.probeRegion(m, t.config.Pool)
	if far != nil {
		t.config.Logger.Info("verbs transport: the NIC does not read the engine's pool; blocks go by way of host memory", "device", n.device.Name, "err", far)
	}
	return err
}

// CanReach reports whether the nodes are one, or there are credentials for a
// connection between them. Whether their fabrics are one is known when they are.
func (t *Transport) CanReach(from, to string) bool {
	return from == to && from != "" || from != to && t.config.Credentials != nil
}

// Device is the name of the RDMA device in use and its port, "" while there is none.
func (t *Transport) Device() (name string, port int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nic == nil {
		return "", 0
	}
	return t.nic.device.Name, int(t.nic.port)
}

// acquireNIC opens the device, unless it is open. It is given back by give.
func (t *Transport) acquireNIC() (*nic, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nic == nil {
		n, err := openNIC(t.config)
		if err != nil {
			return nil, err
		}
		t.nic = n
	}
	t.nic.users++
	return t.nic, nil
}

// releaseNIC ends one use, and closes the device after the last.
func (t *Transport) releaseNIC(n *nic) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.users--
	if n.users > 0 {
		return nil
	}
	if t.nic == n {
		t.nic = nil
	}
	return n.close()
}

// Handler serves the receivers' gRPC requests, whose paths begin with Path. It needs
// HTTP/2, with TLS or without (h2c), and takes streams while Run runs.
func (t *Transport) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.mu.Lock()
		ctx := t.ctx
		t.mu.Unlock()
		if ctx == nil {
			t.server.ServeHTTP(w, r) // and attach refuses it
			return
		}
		// A receiver that does not read what it is answered does not keep Run from
		// ending.
		set := make(chan struct{})
		forget := context.AfterFunc(ctx, func() {
			defer close(set)
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeGrace))
		})
		t.server.ServeHTTP(w, r)
		if !forget() {
			<-set // w is not to be used after this
		}
	})
}

// Run serves until ctx ends. A device that fails, or that is not there, is opened
// again from time to time.
func (t *Transport) Run(ctx context.Context) error {
	t.source.Open()
	t.mu.Lock()
	t.ctx = ctx
	t.mu.Unlock()
	var last string
	for ctx.Err() == nil {
		err := t.runNIC(ctx)
		if errors.Is(err, errDeviceChanged) {
			t.config.Logger.Info("verbs transport: the RDMA device is another one now", "device", t.config.deviceName())
			continue
		}
		if err != nil && err.Error() != last { // a device that is away for an hour is worth one line
			last = err.Error()
			t.config.Logger.Warn("verbs transport: the RDMA device cannot be used; it is tried again from time to time", "err", err)
		}
		select {
		case <-time.After(reopenInterval):
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.source.Close()
	t.wg.Wait()
	t.server.Stop()
	return nil
}

// runNIC keeps the device open until ctx ends, or it fails.
func (t *Transport) runNIC(ctx context.Context) (err error) {
	n, err := t.acquireNIC()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.releaseNIC(n)) }()
	n.setKeepIdle(true)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.watchEvents(n) })
	g.Go(func() error {
		tick := time.NewTicker(closeUnusedInterval)
		defer tick.Stop()
		defer n.device.Interrupt()
		for {
			select {
			case <-tick.C:
				if name := t.config.deviceName(); name != "" && name != n.device.Name {
					t.mu.Lock()
					if t.nic == n {
						t.nic = nil
					}
					t.mu.Unlock()
					n.setKeepIdle(false)
					return errDeviceChanged
				}
				if err := n.closeUnused(t.config.Pool); err != nil {
					t.config.Logger.Warn("verbs transport: a registration", "err", err)
				}
			case <-ctx.Done():
				n.setKeepIdle(false)
				return n.closeUnused(t.config.Pool)
			}
		}
	})
	return g.Wait()
}

// watchEvents takes the device's events until it is interrupted. It fails when the device
// has: nothing new begins on it then.
func (t *Transport) watchEvents(n *nic) error {
	for {
		e, err := n.device.Event()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err == nil && !e.Fatal {
			level := slog.LevelDebug
			if e.AddressChanged {
				level = slog.LevelInfo
				n.invalidateGIDs()
			}
			t.config.Logger.Log(context.Background(), level, "verbs transport: the device tells", "device", n.device.Name, "event", e.Text)
			continue
		}
		if err == nil {
			err = fmt.Errorf("%s: %s", n.device.Name, e.Text)
		}
		t.mu.Lock()
		if t.nic == n {
			t.nic = nil
		}
		t.mu.Unlock()
		n.fail(err) // who waits for the device need not wait until a deadline
		return err
	}
}

// Export makes an offer. See transport.Source.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) {
	return t.source.ExportAt(g, t.config.Address())
}

// requireDevice returns an error while no RDMA device is open.
func (t *Transport) requireDevice(*transport.Memory) error {
	if name, _ := t.Device(); name == "" {
		return errors.New("no RDMA device is open")
	}
	return nil
}

// Revoke ends the grants of a move. See transport.Source.
func (t *Transport) Revoke(move string) { t.source.Revoke(move) }

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

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// errDeviceChanged ends the use of a device when the configuration names another one.
var errDeviceChanged = errors.New("the configured RDMA device has changed")

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	lease.Source
	config    Config
	server    *grpc.Server
	admission lease.Admission
	wg        sync.WaitGroup // goroutines of sessions; added to under mu, while ctx is set

	mu  sync.Mutex
	ctx context.Context // of Run; nil while it does not run
	nic *nic            // nil without users, and after it has failed
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves while Run runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		Source: lease.Source{Transport: "verbs", Pool: c.Pool, TrustDomain: c.TrustDomain, Logger: c.Logger},
		config: c,
		server: grpc.NewServer(grpc.MaxRecvMsgSize(max(maxAttach, maxAskBytes+64))),
	}
	t.Check = t.requireDevice
	t.server.RegisterService(&service, t)
	return t, nil
}

// Probe opens the device, or checks that its port is still active, and registers the
// engine's pool: a pool that cannot be registered is known before a migration, and no
// migration waits for the registration, which takes seconds for a large pool.
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

// probePool returns why the engine's pool can neither be registered nor use bounce
// buffers. It stays registered while Run runs.
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
		t.config.Logger.Info("blocks go through host memory: the NIC does not read the engine's pool", "device", n.device.Name, "err", far)
	}
	return err
}

// CanReach reports whether both ends are on the same host, or credentials are configured
// for connections between hosts. Whether their fabrics are connected is checked by Open.
func (t *Transport) CanReach(from, to string) bool {
	return from == to && from != "" || from != to && t.config.Credentials != nil
}

// Device returns the name of the RDMA device in use and its port, "" if none is open.
func (t *Transport) Device() (name string, port int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nic == nil {
		return "", 0
	}
	return t.nic.device.Name, int(t.nic.port)
}

// acquireNIC opens the device, unless it is open. It is given back by releaseNIC.
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

// releaseNIC ends one use, and closes the device after the last one.
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

// Handler serves the receivers' gRPC requests, whose paths begin with Path. It requires
// HTTP/2, with TLS or without (h2c), and accepts streams while Run runs.
func (t *Transport) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.mu.Lock()
		ctx := t.ctx
		t.mu.Unlock()
		if ctx == nil {
			t.server.ServeHTTP(w, r) // serveReceiver rejects it
			return
		}
		// A receiver that does not read its answers must not keep Run from ending.
		set := make(chan struct{})
		forget := context.AfterFunc(ctx, func() {
			defer close(set)
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeGrace))
		})
		t.server.ServeHTTP(w, r)
		if !forget() {
			<-set // w must not be used after ServeHTTP returns
		}
	})
}

// Run serves until ctx ends. It opens a device that failed, or is missing, again at
// intervals.
func (t *Transport) Run(ctx context.Context) error {
	t.Start(t.config.Address)
	t.mu.Lock()
	t.ctx = ctx
	t.mu.Unlock()
	var last string
	for ctx.Err() == nil {
		err := t.runNIC(ctx)
		if errors.Is(err, errDeviceChanged) {
			t.config.Logger.Info("the RDMA device changed", "device", t.config.deviceName())
			continue
		}
		if err != nil && err.Error() != last { // the same error is logged once
			last = err.Error()
			t.config.Logger.Warn("opening the RDMA device failed; retrying", "err", err)
		}
		select {
		case <-time.After(reopenInterval):
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.Stop()
	t.wg.Wait()
	t.server.Stop()
	return nil
}

// runNIC keeps the device open until ctx ends, or the device fails.
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
					t.config.Logger.Warn("deregistering memory failed", "err", err)
				}
			case <-ctx.Done():
				n.setKeepIdle(false)
				return n.closeUnused(t.config.Pool)
			}
		}
	})
	return g.Wait()
}

// watchEvents handles the device's events until it is interrupted. It fails when the
// device has failed: nothing new begins on it then.
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
			t.config.Logger.Log(context.Background(), level, "RDMA device event", "device", n.device.Name, "event", e.Text)
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
		n.fail(err) // ends all waits for the device before their deadlines
		return err
	}
}

// requireDevice returns an error while no RDMA device is open.
func (t *Transport) requireDevice(*transport.Memory) error {
	if name, _ := t.Device(); name == "" {
		return errors.New("no RDMA device is open")
	}
	return nil
}

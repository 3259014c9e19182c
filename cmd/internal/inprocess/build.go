package inprocess

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/proxy"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// bindFunc binds the address of a field of the fleet file, and writes the address that it got into the field.
type bindFunc func(field string, address *string) (net.Listener, error)

// bindReplicas builds engines and migrators and writes their real addresses
// into the fleet.
func (f *Fleet) bindReplicas(bind bindFunc) error {
	var err error
	if f.vocabulary, err = model.NewVocabulary(); err != nil {
		return err
	}
	list := f.cfg.Fleet.Fleet.Replicas
	for i := range list {
		r := &list[i]
		n, at := replica{id: policies.ReplicaID(r.ID)}, fmt.Sprintf("replicas[%d]", i)
		if !f.cfg.External {
			u, err := url.Parse(r.Engine)
			if err != nil {
				return fmt.Errorf("engine of %s: %w", r.ID, err)
			}
			if n.listener, err = bind(at+".engine", &u.Host); err != nil {
				return err
			}
			r.Engine = u.String()
			if n.engine, err = f.newEngine(*r); err != nil {
				return fmt.Errorf("engine of %s: %w", r.ID, err)
			}
		}
		clients, err := bind(at+".address", &r.Address)
		if err != nil {
			return err
		}
		peers, err := f.bindPeers(bind, at+".peer", &r.Peer)
		if err != nil {
			return err
		}
		if n.migrator, err = f.newMigrator(*r, clients, peers); err != nil {
			return err
		}
		f.replicas = append(f.replicas, n)
	}
	return nil
}

// bindPeers binds the address of a replica's peers. If a Unix socket stands for it, its port is only sought.
func (f *Fleet) bindPeers(bind bindFunc, field string, address *string) (net.Listener, error) {
	l, err := bind(field, address)
	name := f.cfg.Fleet.PeerSocket(*address)
	if err != nil || name == *address {
		return l, err
	}
	l.Close()
	return bind(field, &name)
}

// blocks returns the directory of an engine's block table; "" for none.
func (f *Fleet) blocks(r config.Replica) string {
	if f.cfg.External || r.Connector != "" {
		return r.Blocks
	}
	return filepath.Join(f.runtime, r.ID)
}

// newEngine builds the emulated engine of a replica.
func (f *Fleet) newEngine(r config.Replica) (*emulator.Engine, error) {
	c := f.cfg.Fleet.Engine(r, f.log.With("replica", r.ID))
	c.Vocabulary = f.vocabulary
	if f.cfg.Fleet.Migrates() {
		c.Blocks = f.blocks(r)
		if dir := f.cfg.Fleet.Connector(r); dir != "" {
			c.KVSocket = &emulator.KVSocket{Dir: dir}
		}
	}
	var err error
	if c.Device, err = f.cfg.GPUs.PoolAllocator(f.cfg.Device, r.GPU); err != nil {
		return nil, err
	}
	if f.cfg.hooks.engine != nil {
		f.cfg.hooks.engine(&c)
	}
	return emulator.New(c)
}

// newMigrator builds the migrator of a replica.
func (f *Fleet) newMigrator(r config.Replica, clients, peers net.Listener) (*migratord.Daemon, error) {
	c := migratord.Config{
		Fleet: f.cfg.Fleet, Replica: r, Control: f.controlConn, Clients: clients, Peers: peers, Listen: f.cfg.hooks.listen,
		Runtime: filepath.Join(f.runtime, "shm"), Blocks: f.blocks(r), GPUs: f.cfg.GPUs, Machine: f.cfg.Machine, Host: f.host, Room: f.cfg.Room, Drain: f.cfg.Drain, Tracer: f.cfg.Tracer,
		Logger: f.log.With("replica", r.ID), EditFrontend: f.cfg.hooks.front,
	}
	if f.cfg.hooks.migrator != nil {
		f.cfg.hooks.migrator(&c)
	}
	return migratord.New(c)
}

// bindProxy finds the data plane's address. Envoy binds it itself, so bindProxy only reserves it.
func (f *Fleet) bindProxy(bind bindFunc) error {
	if f.cfg.Envoy != "" {
		return f.reserveEnvoyAddress(bind)
	}
	l, err := bind("proxy.listen", &f.cfg.Fleet.Proxy.Listen)
	if err != nil {
		return err
	}
	f.proxyListener, f.address = l, l.Addr().String()
	return nil
}

// reserveEnvoyAddress finds an address that Envoy can bind. Another process could take an ephemeral
// port before Envoy binds it, so the function searches below the ephemeral range.
func (f *Fleet) reserveEnvoyAddress(bind bindFunc) error {
	const lowest, ports, tries = 20_000, 10_000, 50
	host, port, err := net.SplitHostPort(f.cfg.Fleet.Proxy.Listen)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	for n := 0; ; n++ {
		if port == "0" {
			f.cfg.Fleet.Proxy.Listen = net.JoinHostPort(host, strconv.Itoa(lowest+rand.IntN(ports)))
		}
		l, err := bind("proxy.listen", &f.cfg.Fleet.Proxy.Listen)
		if err == nil {
			f.address = l.Addr().String()
			return l.Close()
		}
		if port != "0" || n == tries {
			return err
		}
	}
}

// The node ids of the data plane in or below this process.
const (
	embeddedProxy = "embedded"
	envoyProxy    = "envoy"
)

func (f *Fleet) bindControl(listener net.Listener, bind bindFunc) error {
	if f.cfg.Fleet.RemoteState() {
		return wiring.ErrInProcess
	}
	f.cfg.Fleet.Proxy.Nodes = append(slices.Clone(f.cfg.Fleet.Proxy.Nodes), embeddedProxy, envoyProxy)
	cc, err := f.cfg.Fleet.Control(f.log.With("part", "control"))
	if err != nil {
		return err
	}
	if f.cfg.hooks.control != nil {
		f.cfg.hooks.control(&cc)
	}
	if f.plane, err = policyhost.JoinPlane(context.Background(), &f.cfg.Fleet, &cc, f.log.With("part", "control")); err != nil {
		return err
	}
	cc.Records = policyhost.Records(f.Hosts()...) // all hosts are in this process
	cc.Listener = listener
	if cc.AdminListener, err = bind("control.admin", &f.cfg.Fleet.Fleet.Control.Admin); err != nil {
		return err
	}
	if cc.Local, err = f.cfg.Fleet.ListenLocal(f.log); err != nil {
		return err
	}
	if f.control, err = control.New(cc); err != nil {
		if cc.Local != nil {
			err = errors.Join(err, cc.Local.Close())
		}
		return err
	}
	xds := f.cfg.Fleet.OwnControlPlanes()[0]
	if f.cfg.Envoy != "" {
		f.envoy = &envoyProcess{binary: f.cfg.Envoy, xds: xds, drain: f.cfg.Drain, log: f.log.With("part", "envoy")}
		return nil
	}
	f.proxy, err = proxy.New(proxy.Config{
		Client: routing.Config{Target: xds, NodeID: embeddedProxy}, Listener: f.proxyListener,
		DrainTimeout: f.cfg.Drain, Admit: f.cfg.Room.Admit, WrapListener: f.cfg.Room.Listener, Logger: f.log.With("part", "proxy"),
		Tracer: f.cfg.Tracer, BodyMemory: f.cfg.Fleet.Fleet.Proxy.BodyLimit.ProxyBytes(), BodyRate: config.BodyRate,
	})
	return err
}

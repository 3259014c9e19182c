package contestant

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// variant is what differs between Cascade's configurations.
type variant struct {
	preset   string // empty: the default
	moves    string // migration.mode; empty: the preset's
	oneStage bool
}

// cascade returns Cascade in one configuration. Its components run in this process, over real
// sockets and xDS; Envoy, if there is one, is a process. Policies are the native ones.
func cascade(name string, v variant) Contestant {
	settings := fmt.Sprintf("cascade, preset %q, migration.mode %q, one stage %v, overload.admission off", v.preset, v.moves, v.oneStage)
	return Contestant{Name: name, Settings: settings, start: func(t Tools, e Engines, log *slog.Logger) (Router, error) {
		f, err := v.fleet(e)
		if err != nil {
			return nil, err
		}
		fleet, err := inprocess.New(inprocess.Config{Fleet: f, External: true, Envoy: t.Envoy, Logger: log})
		if err != nil {
			return nil, err
		}
		return fleetRouter{fleet, len(e.Replicas)}, nil
	}}
}

// fleetRouter is a fleet that is ready when all of its replicas are.
type fleetRouter struct {
	*inprocess.Fleet
	replicas int
}

// Ready implements Router.
func (r fleetRouter) Ready(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		healthy := 0
		for _, m := range r.Control().Status().Models {
			for _, s := range m.Stages {
				for _, one := range s.Replicas {
					if one.Health == "healthy" && one.Weight > 0 {
						healthy++
					}
				}
			}
		}
		if healthy == r.replicas {
			return r.Fleet.Ready(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d of %d replicas are healthy", context.Cause(ctx), healthy, r.replicas)
		case <-tick.C:
		}
	}
}

// fleet returns the fleet in front of the engines, on free loopback ports.
func (v variant) fleet(e Engines) (wiring.Fleet, error) {
	const anyPort = "127.0.0.1:0"
	f := config.Fleet{
		Preset: v.preset, Speed: e.Speed,
		Models:    []config.Model{{Name: e.Model, Context: e.Context, Profile: e.Profile, History: e.History}},
		Control:   config.Control{Listen: anyPort, Admin: anyPort},
		Proxy:     config.Proxy{Listen: anyPort},
		Migration: config.Migration{Mode: v.moves},
		// All contestants serve the same requests; the others refuse none.
		Overload: config.Overload{Admission: config.AdmissionOff},
	}
	if v.oneStage {
		f.Planner.MinRequests, f.Models[0].History = config.KeepFirstPlan, ""
	}
	for i, r := range e.Replicas {
		f.Replicas = append(f.Replicas, config.Replica{ID: fmt.Sprintf("r%d", i), Address: anyPort, Peer: anyPort, Engine: r.URL, Blocks: r.Blocks, KVEvents: kvEvents(r)})
	}
	if errs := f.Validate(); len(errs) > 0 {
		return wiring.Fleet{}, errs[0]
	}
	dir, err := filepath.Abs(".")
	if err != nil {
		return wiring.Fleet{}, err
	}
	return wiring.Resolve(f, dir)
}

// kvEvents returns where an engine publishes its KV events: it listens.
func kvEvents(r Replica) config.KVEvents {
	_, port, ok := strings.Cut(r.Events, ":")
	if !ok {
		return config.KVEvents{}
	}
	e := config.KVEvents{Endpoint: "tcp://*:" + port}
	if r.Replay != "" {
		e.ReplayEndpoint = "tcp://" + r.Replay
	}
	return e
}

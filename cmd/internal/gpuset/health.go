package gpuset

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/health"
	"github.com/cascadeinfer/cascade/migrator/device/nvml"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// readEvery is the time between two readings of the GPUs' health, and for which NVML is
// left alone after it has failed.
const readEvery = 10 * time.Second

// Run watches the GPUs' health by NVML until ctx ends, from when one was opened. One that
// is not to be trusted is condemned (cuda.GPU.Condemn) until it is well again. A machine
// without NVML is watched by nobody, and that is no error. It may be called once.
func (g *GPUs) Run(ctx context.Context) error {
	select {
	case <-g.needed:
	case <-ctx.Done():
		return nil
	}
	for last := ""; ctx.Err() == nil; {
		err := g.watch(ctx)
		if errors.Is(err, device.ErrNoLibrary) || errors.Is(err, device.ErrNoCgo) || errors.Is(err, nvml.ErrOther) {
			g.config.Logger.Info("nobody watches the GPUs' health", "error", err)
			<-ctx.Done()
			return nil
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			g.config.Logger.Warn("the GPUs' health cannot be watched for now; trying again", "error", err)
		}
		select {
		case <-time.After(g.every):
		case <-ctx.Done():
		}
	}
	return nil
}

// watch watches until NVML fails.
func (g *GPUs) watch(ctx context.Context) (err error) {
	l, err := nvml.Open(nvml.Config{Library: g.config.NVML})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	g.read(l)
	w, ctx := errgroup.WithContext(ctx)
	w.Go(func() error {
		err := l.Watch(ctx, g.xid)
		var lacks *device.SymbolError
		if errors.As(err, &lacks) { // readings say less, and later
			g.config.Logger.Info("GPUs' critical errors are not told", "error", err)
			return nil
		}
		if err != nil {
			g.read(l) // a GPU that is lost ends the waiting for all
		}
		return err
	})
	w.Go(func() error {
		tick := time.NewTicker(g.every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.read(l)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return w.Wait()
}

// xid takes a critical error of a GPU, by NVML's index.
func (g *GPUs) xid(index int, xid uint64) {
	g.reading.Lock()
	defer g.reading.Unlock()
	if index >= len(g.indices) || g.indices[index] == "" {
		g.config.Logger.Warn("a GPU that cannot be told reports a critical error", "index", index, "error", health.Name(xid))
		return
	}
	at := g.indices[index]
	g.tell(at, func(j *health.Judge) {
		ours := j.Xid(xid)
		g.config.Logger.Warn("a GPU reports a critical error", "gpu", at, "error", health.Name(xid), "of a program", !ours)
	})
}

// read takes a reading.
func (g *GPUs) read(l *nvml.Library) {
	g.reading.Lock()
	defer g.reading.Unlock()
	all, err := l.Health()
	if err != nil {
		g.config.Logger.Debug("a reading of the GPUs' health", "error", err)
	}
	var addresses []string // by index
	seen := make(map[string]bool)
	for i, one := range all {
		at := address(one.PCI.Address)
		if at == "" && i < len(g.indices) { // a GPU that is lost does not say where it is
			at = g.indices[i]
		}
		addresses, seen[at] = append(addresses, at), true
		if at != "" {
			g.tell(at, func(j *health.Judge) { j.Read(one.Health) })
		}
	}
	g.indices = addresses
	g.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(g.verdicts)), func(at string) bool { return seen[at] })
	g.mu.Unlock()
	if len(all) > 0 {
		for _, at := range gone {
			g.tell(at, func(j *health.Judge) { j.Read(topology.Health{Lost: "the driver does not show it any more"}) })
		}
	}
}

// address is a PCI address as all write it.
func address(s string) string { return strings.ToLower(s) }

// tell tells the judge of a GPU something, and the GPU what follows from it.
func (g *GPUs) tell(at string, something func(*health.Judge)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	j := g.verdicts[at]
	if j == nil {
		j = &health.Judge{}
		g.verdicts[at] = j
	}
	problem, note := j.Problem(), j.Note()
	something(j)
	if now := j.Problem(); now != problem && now != "" {
		g.config.Logger.Warn("a GPU is not trusted with KV any more", "gpu", at, "why", now)
	} else if now != problem {
		g.config.Logger.Info("a GPU is trusted with KV again", "gpu", at)
	}
	if now := j.Note(); now != note {
		g.config.Logger.Info("a GPU's state", "gpu", at, "state", now)
	}
	for _, gpu := range g.open {
		g.judgeLocked(gpu)
	}
}

// judgeLocked tells a GPU what is thought of it.
func (g *GPUs) judgeLocked(gpu *cuda.GPU) {
	j := g.verdicts[address(gpu.Device().PCI)]
	if j == nil {
		return
	}
	if problem := j.Problem(); problem != "" {
		gpu.Condemn(errors.New(problem))
		return
	}
	gpu.Condemn(nil)
}

package publish

import (
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Misrender makes a publisher that does not run yet change what is rendered and
// skip the proof, for resources that proxies refuse and the proof does not.
func (p *Publisher) Misrender(change func(resources.View, resources.Set) resources.Set) error {
	build := func(v resources.View) (resources.Set, error) {
		s, err := resources.Build(v)
		if err != nil {
			return s, err
		}
		return change(v, s), nil
	}
	p.buildSnapshot = func(v resources.View) (*planrollout.Snapshot, error) {
		s, err := build(v)
		return &planrollout.Snapshot{View: v, Set: s}, err
	}
	cfg := p.cfg.rollout()
	cfg.Build, cfg.Prove = build, func(resources.Set) error { return nil }
	var err error
	p.rollout, err = planrollout.New(cfg)
	return err
}

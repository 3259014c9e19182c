package publish

import "github.com/cascadeinfer/cascade/xds/resources"

// Misrender makes a publisher that does not run yet change what is rendered and
// skip the proof, for resources that proxies refuse and the proof does not.
func (p *Publisher) Misrender(change func(resources.View, resources.Set) resources.Set) {
	p.rollout.prove = func(resources.Set) error { return nil }
	p.rollout.build = func(v resources.View) (resources.Set, error) {
		s, err := resources.Build(v)
		if err != nil {
			return s, err
		}
		return change(v, s), nil
	}
}

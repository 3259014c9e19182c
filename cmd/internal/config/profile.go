package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/engine/cost"
)

// ReplicaProfiles returns the profiles of replicas that have one of their own, by
// id and at the fleet's speed. The errors name the field.
func (f *Fleet) ReplicaProfiles(dir string) (map[string]cost.Profile, error) {
	out := make(map[string]cost.Profile)
	for i, r := range f.Replicas {
		if r.Profile == "" {
			continue
		}
		p, err := LoadProfile(r.Profile, dir)
		if err != nil {
			return nil, &FieldError{Path: fmt.Sprintf("replicas[%d].profile", i), Msg: err.Error()}
		}
		out[r.ID] = p.Scale(f.Speed)
	}
	return out, nil
}

// Profiles returns every model's cost profile, with the model's own capacity and
// at the fleet's speed. A name that ends in .json is a file relative to dir. The
// errors name the field.
func (f *Fleet) Profiles(dir string) (map[string]cost.Profile, error) {
	out := make(map[string]cost.Profile, len(f.Models))
	for i, m := range f.Models {
		p, err := LoadProfile(m.Profile, dir)
		if err != nil {
			return nil, &FieldError{Path: fmt.Sprintf("models[%d].profile", i), Msg: err.Error()}
		}
		if m.KVTokens > 0 {
			p.KVTokens = m.KVTokens
		}
		if m.Batch > 0 {
			p.MaxBatch = m.Batch
		}
		if p.KVTokens < m.Context {
			return nil, &FieldError{Path: fmt.Sprintf("models[%d].context", i),
				Msg: fmt.Sprintf("one sequence of %d tokens exceeds the profile's KV cache of %d tokens; lower context or set kv_tokens", m.Context, p.KVTokens)}
		}
		out[m.Name] = p.Scale(f.Speed)
	}
	return out, nil
}

// LoadProfile returns a built-in profile by name, or reads a .json file, relative to dir.
func LoadProfile(name, dir string) (cost.Profile, error) {
	if filepath.Ext(name) != ".json" {
		return cost.Builtin(name)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	r, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return cost.Profile{}, fmt.Errorf("%w; \"cascade profile fit\" writes one, and \"cascade profile\" has built-in ones", err)
	}
	if err != nil {
		return cost.Profile{}, err
	}
	defer r.Close()
	p, err := cost.Read(r)
	if err != nil {
		return cost.Profile{}, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

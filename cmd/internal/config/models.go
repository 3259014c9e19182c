package config

import (
	"fmt"
	"slices"
)

// validateCapacity checks the capacity of replicas. Replicas of one model that
// differ in profile or tp must state theirs: a plan that counted them as equal
// would overload the small ones.
func (f *Fleet) validateCapacity(c *checker) {
	contexts := make(map[string]Model, len(f.Models))
	for _, m := range f.Models {
		contexts[m.Name] = m
	}
	type kind struct {
		profile string
		tp      int
	}
	kinds := make(map[string][]kind)
	of := func(r Replica) kind {
		if r.Profile == "" {
			r.Profile = contexts[r.Model].Profile
		}
		return kind{r.Profile, r.TP}
	}
	for _, r := range f.Replicas {
		if k := of(r); !slices.Contains(kinds[r.Model], k) {
			kinds[r.Model] = append(kinds[r.Model], k)
		}
	}
	for i, r := range f.Replicas {
		at := fmt.Sprintf("replicas[%d]", i)
		if context := contexts[r.Model].Context; r.KVTokens < 0 || r.KVTokens > 0 && r.KVTokens < context {
			c.fail(at+".kv_tokens", "%d is less than one sequence of %d tokens (the model's context)", r.KVTokens, context)
		}
		if r.Batch < 0 {
			c.fail(at+".batch", "%d is negative; leave it out for the profile's", r.Batch)
		}
		if len(kinds[r.Model]) > 1 && (r.KVTokens == 0 || r.Batch == 0) {
			c.fail(at, "the replicas of %q differ in profile or tp: set kv_tokens and batch for each of them", r.Model)
		}
	}
}

// validateAdapters checks the names and replicas of LoRA adapters.
func (f *Fleet) validateAdapters(c *checker) {
	names := make(map[string]string)
	for _, m := range f.Models {
		names[m.Name] = "a model"
	}
	serves := make(map[string]string, len(f.Replicas))
	for _, r := range f.Replicas {
		serves[r.ID] = r.Model
	}
	for i, m := range f.Models {
		for j, a := range m.Adapters {
			at := fmt.Sprintf("models[%d].adapters[%d]", i, j)
			switch {
			case a.Name == "" || len(a.Name) > 256:
				c.fail(at+".name", "must have 1 to 256 bytes")
			case names[a.Name] != "":
				c.fail(at+".name", "%q is already the name of %s", a.Name, names[a.Name])
			}
			names[a.Name] = "an adapter"
			for k, id := range a.Replicas {
				if model, ok := serves[id]; !ok || model != m.Name {
					c.fail(fmt.Sprintf("%s.replicas[%d]", at, k), "%q is not a replica of %q", id, m.Name)
				}
			}
		}
	}
}

// AdaptersOf returns the names of the LoRA adapters that a replica has loaded, in
// the order of the file. The fleet must be valid.
func (f *Fleet) AdaptersOf(r Replica) []string {
	var out []string
	for _, m := range f.Models {
		if m.Name != r.Model {
			continue
		}
		for _, a := range m.Adapters {
			if len(a.Replicas) == 0 || slices.Contains(a.Replicas, r.ID) {
				out = append(out, a.Name)
			}
		}
	}
	return out
}

package inprocess

// Engines returns the base URLs of the engines, in the order of the fleet file.
func (f *Fleet) Engines() []string {
	var out []string
	for _, r := range f.cfg.Fleet.Fleet.Replicas {
		out = append(out, r.Engine)
	}
	return out
}

// Stages returns the stage of each replica in the order of Engines, counted through all models: −1 for
// replicas that are in none.
func (f *Fleet) Stages() []int {
	of, next := map[string]int{}, 0
	for _, m := range f.control.Status().Models {
		for _, s := range m.Stages {
			for _, r := range s.Replicas {
				of[string(r.ID)] = next
			}
			next++
		}
	}
	out := make([]int, len(f.replicas))
	for i, r := range f.replicas {
		out[i] = -1
		if stage, ok := of[string(r.id)]; ok {
			out[i] = stage
		}
	}
	return out
}

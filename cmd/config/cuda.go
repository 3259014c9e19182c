package config

// CUDA says how blocks are copied by GPUs.
type CUDA struct {
	// Groups is how many thread groups a copy has, 1 to 1024: more are faster, and
	// keep as many multiprocessors from an engine that works at the same time (by
	// MPS). "cascade devices check" measures both. 0 means 16.
	Groups int `yaml:"groups,omitempty"`
}

func (d CUDA) validate(c *checker) {
	if d.Groups != 0 {
		within(c, "cuda.groups", d.Groups, 1, 1024)
	}
}

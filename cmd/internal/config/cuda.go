package config

// CUDA says how blocks are copied by GPUs.
type CUDA struct {
	// Groups is how many thread groups a copy has, 1 to 1024: more are faster, and
	// keep as many multiprocessors from an engine that works at the same time (by
	// MPS). "cascade devices check" measures both. 0 means 16.
	Groups int `yaml:"groups,omitempty"`
	// Copy is who copies blocks between GPUs: kernel, or engines for the GPU's copy
	// engines, which take no multiprocessors from the engine beside them and cost a
	// processor more for scattered blocks. Empty means kernel.
	Copy string `yaml:"copy,omitempty"`
}

// UseCopyEngines reports whether the copy engines have all blocks.
func (d CUDA) UseCopyEngines() bool { return d.Copy == "engines" }

func (d CUDA) validate(c *checker) {
	if d.Groups != 0 {
		checkRange(c, "cuda.groups", d.Groups, 1, 1024)
	}
	if d.Copy != "" && d.Copy != "kernel" && d.Copy != "engines" {
		c.fail("cuda.copy", "%q: there are kernel and engines", d.Copy)
	}
}

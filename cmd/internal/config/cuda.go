package config

// CUDA configures how GPUs copy KV blocks.
type CUDA struct {
	// Groups is how many thread groups (CTAs) the copy kernel uses, 1 to 1024. More
	// copy faster, and take as many multiprocessors from an engine that runs at the
	// same time (with MPS). "cascade devices check" measures both.
	Groups int `yaml:"groups,omitempty" default:"16" unit:"thread groups"`
	// Copy is what copies blocks between GPUs: "kernel", or "engines" for the GPU's
	// copy engines, which take no multiprocessors from the inference engine, at the
	// price of host CPU for scattered blocks.
	Copy string `yaml:"copy,omitempty" default:"kernel"`
}

// UseCopyEngines reports whether the copy engines copy all blocks.
func (d CUDA) UseCopyEngines() bool { return d.Copy == "engines" }

func (d CUDA) validate(c *checker) {
	if d.Groups != 0 {
		checkRange(c, "cuda.groups", d.Groups, 1, 1024)
	}
	if d.Copy != "" {
		checkOneOf(c, "cuda.copy", d.Copy, "kernel", "engines")
	}
}

package config

import "time"

// Autoscale configures how many replicas the control plane recommends for each model
// (cascade_desired_replicas), for an autoscaler such as HPA or KEDA to follow: the fewest
// that serve the present demand within the planner's limits. It starts and stops none itself.
type Autoscale struct {
	// Utilisation is the share of what the replicas can serve within the planner's limits that the
	// demand may be, up to 1. A lower one leaves more room for what comes while replicas start.
	Utilisation float64 `yaml:"utilisation,omitempty" unit:"share"`
	// Hysteresis is the share by which utilisation is lower when replicas are removed, from 0.01 to
	// 0.9, so that demand at a threshold does not add and remove the same replica.
	Hysteresis float64 `yaml:"hysteresis,omitempty" unit:"share"`
	// Window is for how long fewer replicas must have been enough before fewer are recommended, 1s to
	// 24h; it is divided by speed. More are recommended at once.
	Window time.Duration `yaml:"window,omitempty"`
}

func (a *Autoscale) setDefaults() {
	setDefault(&a.Utilisation, 0.75)
	setDefault(&a.Hysteresis, 0.1)
	setDefault(&a.Window, 10*time.Minute)
}

func (a Autoscale) validate(c *checker) {
	checkRange(c, "autoscale.utilisation", a.Utilisation, 0.01, 1)
	checkRange(c, "autoscale.hysteresis", a.Hysteresis, 0.01, 0.9)
	checkRange(c, "autoscale.window", a.Window, time.Second, 24*time.Hour)
}

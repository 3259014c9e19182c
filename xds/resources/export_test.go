package resources

// Known returns the number of resources that the Prover remembers.
func (v *Prover) Known() int { return len(v.young) + len(v.old) }

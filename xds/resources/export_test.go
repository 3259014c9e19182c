package resources

// Known counts the resources that the Prover remembers.
func (v *Prover) Known() int { return len(v.young) + len(v.old) }

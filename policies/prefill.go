package policies

// PrefillRange is the prompts that a prefill replica is meant for: those of which at least Low
// and less than High tokens are not cached. It is a preference: placement uses another prefill
// replica where the queues of those that are meant for a prompt are too long.
type PrefillRange struct {
	Replica   ReplicaID
	Low, High Tokens
}

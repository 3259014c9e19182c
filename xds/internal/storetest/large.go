package storetest

import (
	"fmt"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// LargeObject returns an object of n replicas, for benchmarks and size limits.
func LargeObject(n int) store.Object {
	ids := make([]policies.ReplicaID, n)
	for i := range ids {
		ids[i] = policies.ReplicaID(fmt.Sprintf("replica-%s.pool-a.example", strconv.Itoa(i)))
	}
	return store.Object{Plans: []policies.Plan{policies.OneStagePlan("m", ids)}}
}

// LargeDocuments returns an object of a model whose plan and whose state both exceed what one value of a remote store
// holds, such as an annotation.
func LargeDocuments(model string) store.Object {
	o := LargeObject(14_000)
	o.Plans[0].Model = model
	for _, id := range o.Plans[0].Stages[0].Replicas {
		o.Weights = append(o.Weights, store.Weight{Replica: id, Weight: 7})
	}
	return o
}

//go:build !wasm

package abi

import "github.com/cascadeinfer/cascade/policies"

// decodeBids decodes the records into dst, which has the same length. It returns false
// if a name lies outside aux.
func (p *frameAreas) decodeBids(dst []policies.Bid) bool {
	rest := p.records
	for i := range dst {
		r := rest[:bidSize]
		rest = rest[p.stride:]
		from, ok := text(u64(r[16:]), p.aux)
		if !ok {
			return false
		}
		b := &dst[i]
		b.From = policies.ReplicaID(from)
		b.Load = policies.Tokens(u64(r))
		b.Start = policies.Micros(u64(r[8:]))
	}
	return true
}

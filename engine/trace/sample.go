package trace

import (
	"encoding/binary"
	"hash/fnv"
)

// SampleConversations returns the requests of about one conversation in n, in their order. Turns of a
// conversation are minutes apart, so that a slice of a few hundred requests sees few second turns; a sample
// reaches n times as far with as many requests, and keeps what they share. Between two turns of a conversation
// there are n times fewer other requests, at any rate: caches lose less. Requests are of one conversation
// if their prompts go on with the same block behind what nearly all prompts begin with. Prompts that name no
// such block are conversations of one request, of which every nth is kept. n of 1 or less keeps all.
func SampleConversations(requests []Request, n int) []Request {
	if n <= 1 {
		return requests
	}
	head := commonHead(requests)
	var kept []Request
	alone := 0
	for _, r := range requests {
		if len(r.Prefix) > head {
			if conversationHash(r.Prefix[head])%uint64(n) == 0 {
				kept = append(kept, r)
			}
			continue
		}
		if alone++; alone%n == 0 {
			kept = append(kept, r)
		}
	}
	return kept
}

// conversationHash spreads the ids of blocks, which traces number in the order of their arrival.
func conversationHash(id uint64) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, id))
	return h.Sum64()
}

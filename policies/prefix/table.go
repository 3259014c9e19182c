package prefix

// table maps 64-bit keys to numbers below 1<<32-1, several for one key if need be. It stores
// no keys: a lookup yields all numbers whose key has the same 32-bit tag, and the caller
// compares. It is divided into shards that grow one by one and by a quarter, so that no
// insertion waits for the whole table to be copied, and no more than two fifths are empty.
type table struct {
	seed   uint64
	shards [tableShards]shard
}

// shard is an open-addressing table with linear probing. A slot is 0, or the tag and above
// it the number plus one; where a search for it begins grows with the tag.
type shard struct {
	slots []uint64
	used  int
}

const (
	tableShards     = 1 << tableShardsLog2
	tableShardsLog2 = 6
)

// tag returns the shard of a key and its tag. The seed keeps who chooses keys, as clients
// do by their prompts, from choosing slots.
func (t *table) tag(key uint64) (*shard, uint32) {
	m := (key ^ t.seed) * 0x9e3779b97f4a7c15
	m = (m ^ m>>32) * 0xd6e8feb86659fd93
	return &t.shards[m>>(64-tableShardsLog2)], uint32(m >> (32 - tableShardsLog2))
}

// matches iterates over the numbers of a tag.
type matches struct {
	shard *shard
	at    int
	tag   uint32
}

// find begins a search for the numbers of a key.
func (t *table) find(key uint64) matches {
	s, tag := t.tag(key)
	return matches{shard: s, at: home(tag, len(s.slots)), tag: tag}
}

// home returns where among n slots a search for a tag begins.
func home(tag uint32, n int) int { return int(uint64(tag) * uint64(n) >> 32) }

// next returns the next number of the tag, which may be another key's. At the end it stays at
// a free slot, if there are slots.
func (m *matches) next() (number uint32, ok bool) {
	slots := m.shard.slots
	for m.at < len(slots) {
		s := slots[m.at]
		if s == 0 {
			return 0, false
		}
		if m.at++; m.at == len(slots) {
			m.at = 0
		}
		if uint32(s) == m.tag {
			return uint32(s>>32) - 1, true
		}
	}
	return 0, false
}

// add adds a number to those of the key that was searched for to the end. The table has not
// changed since.
func (m *matches) add(number uint32) {
	s := m.shard
	if s.used+1 > len(s.slots)*3/4 {
		s.grow()
		s.put(m.tag, number)
	} else {
		s.slots[m.at] = uint64(number+1)<<32 | uint64(m.tag)
	}
	s.used++
}

// peek reads where a search for a key begins, and so has the processor cache it.
func (t *table) peek(key uint64) uint64 {
	s, tag := t.tag(key)
	if len(s.slots) == 0 {
		return 0
	}
	return s.slots[home(tag, len(s.slots))]
}

// put writes a slot, for which there is room.
func (s *shard) put(tag, number uint32) {
	at := home(tag, len(s.slots))
	for s.slots[at] != 0 {
		if at++; at == len(s.slots) {
			at = 0
		}
	}
	s.slots[at] = uint64(number+1)<<32 | uint64(tag)
}

// grow makes room for a quarter more.
func (s *shard) grow() {
	old := s.slots
	s.slots = make([]uint64, len(old)*5/4+8)
	for _, slot := range old {
		if slot != 0 {
			s.put(uint32(slot), uint32(slot>>32)-1)
		}
	}
}

// remove removes a number from those of a key. It does nothing if it is not one of them.
func (t *table) remove(key uint64, number uint32) {
	s, tag := t.tag(key)
	n := len(s.slots)
	if n == 0 {
		return
	}
	hole, want := home(tag, n), uint64(number+1)<<32|uint64(tag)
	for s.slots[hole] != want {
		if s.slots[hole] == 0 {
			return
		}
		if hole++; hole == n {
			hole = 0
		}
	}
	s.used--
	// Slots that were pushed beyond the hole move back, or searches would end at it.
	for at := hole; ; {
		if at++; at == n {
			at = 0
		}
		slot := s.slots[at]
		if slot == 0 {
			break
		}
		if distance(home(uint32(slot), n), at, n) >= distance(hole, at, n) {
			s.slots[hole], hole = slot, at
		}
	}
	s.slots[hole] = 0
}

// distance returns how many of n slots a search passes from one to another.
func distance(from, to, n int) int {
	if to < from {
		to += n
	}
	return to - from
}

// bytes returns how much memory the slots take.
func (t *table) bytes() (n int) {
	for i := range t.shards {
		n += cap(t.shards[i].slots) * 8
	}
	return n
}

package length

import "math/bits"

// sipHash is SipHash-2-4 (Aumasson and Bernstein, 2012) of what was written so far: a
// keyed hash whose results are unpredictable without the key. The standard library has
// none whose results are the same in every process.
type sipHash struct {
	v0, v1, v2, v3 uint64
	word           uint64 // the bytes that do not fill a word yet
	size           uint64 // bytes written
}

// newSipHash returns the hash of nothing under a key.
func newSipHash(k0, k1 uint64) sipHash {
	return sipHash{v0: k0 ^ 0x736f6d6570736575, v1: k1 ^ 0x646f72616e646f6d, v2: k0 ^ 0x6c7967656e657261, v3: k1 ^ 0x7465646279746573}
}

func (h *sipHash) write(p []byte) {
	for len(p) > 0 && h.size%8 != 0 {
		h.writeByte(p[0])
		p = p[1:]
	}
	for ; len(p) >= 8; p = p[8:] {
		h.compress(littleEndian(p))
		h.size += 8
	}
	for _, c := range p {
		h.writeByte(c)
	}
}

func (h *sipHash) writeByte(c byte) {
	h.word |= uint64(c) << (h.size % 8 * 8)
	if h.size++; h.size%8 == 0 {
		h.compress(h.word)
		h.word = 0
	}
}

// writeUint64 writes the eight bytes of a number, the lowest first.
func (h *sipHash) writeUint64(x uint64) {
	for range 8 {
		h.writeByte(byte(x))
		x >>= 8
	}
}

// sum returns the hash. More can be written afterwards.
func (h *sipHash) sum() uint64 {
	end := *h
	end.compress(end.word | end.size<<56)
	end.v2 ^= 0xff
	for range 4 {
		end.round()
	}
	return end.v0 ^ end.v1 ^ end.v2 ^ end.v3
}

func (h *sipHash) compress(m uint64) {
	h.v3 ^= m
	h.round()
	h.round()
	h.v0 ^= m
}

func (h *sipHash) round() {
	h.v0 += h.v1
	h.v1 = bits.RotateLeft64(h.v1, 13) ^ h.v0
	h.v0 = bits.RotateLeft64(h.v0, 32)
	h.v2 += h.v3
	h.v3 = bits.RotateLeft64(h.v3, 16) ^ h.v2
	h.v0 += h.v3
	h.v3 = bits.RotateLeft64(h.v3, 21) ^ h.v0
	h.v2 += h.v1
	h.v1 = bits.RotateLeft64(h.v1, 17) ^ h.v2
	h.v2 = bits.RotateLeft64(h.v2, 32)
}

// littleEndian reads the first eight bytes; package encoding/binary would link reflect
// into the module that proxies run.
func littleEndian(p []byte) uint64 {
	q := p[:8:8]
	return uint64(q[0]) | uint64(q[1])<<8 | uint64(q[2])<<16 | uint64(q[3])<<24 |
		uint64(q[4])<<32 | uint64(q[5])<<40 | uint64(q[6])<<48 | uint64(q[7])<<56
}

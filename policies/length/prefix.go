package length

import (
	"errors"
	"strconv"
)

// The depths of prefix keys, in bytes of prompt text. A depth is a power of two: the
// Scanner hashes the text before it knows the model, so it hashes to the same depths
// for all of them.
const (
	MinPrefixDepth = 256
	MaxPrefixDepth = 128 << 10

	prefixLevels = 10 // powers of two from MinPrefixDepth to MaxPrefixDepth
)

// PrefixDepth returns the largest depth that is not above n, within the bounds; 0, which means
// no keys, for 0 and less.
func PrefixDepth(n int64) int64 {
	if n <= 0 {
		return 0
	}
	d := int64(MinPrefixDepth)
	for d < MaxPrefixDepth && 2*d <= n {
		d *= 2
	}
	return d
}

// PrefixSecretBytes is the size of a PrefixSecret.
const PrefixSecretBytes = 16

// PrefixSecret keys the prefix keys of a model. Whoever does not know it cannot find a
// prompt that leads to a replica of their choice.
type PrefixSecret [PrefixSecretBytes]byte

const hexDigits = "0123456789abcdef"

const redacted = "prefix secret (not shown)"

// String does not show the secret.
func (PrefixSecret) String() string { return redacted }

// GoString does not show the secret.
func (PrefixSecret) GoString() string { return redacted }

// MarshalText does not show the secret, in JSON and logs neither.
func (PrefixSecret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Hex returns the secret in hexadecimal digits, as ParsePrefixSecret reads it: for files that only
// their owner may read, and for proxies.
func (s PrefixSecret) Hex() string {
	out := make([]byte, 0, 2*len(s))
	for _, b := range s {
		out = append(out, hexDigits[b>>4], hexDigits[b&15])
	}
	return string(out)
}

// ParsePrefixSecret parses 32 hexadecimal digits.
func ParsePrefixSecret(text string) (s PrefixSecret, err error) {
	if len(text) != 2*len(s) {
		return s, errors.New("prefix secret: want " + strconv.Itoa(2*len(s)) + " hexadecimal digits")
	}
	for i := range s {
		b, err := strconv.ParseUint(text[2*i:2*i+2], 16, 8)
		if err != nil {
			return PrefixSecret{}, errors.New("prefix secret: not hexadecimal") // without the digits
		}
		s[i] = byte(b)
	}
	return s, nil
}

// Prefixes makes the prefix keys of one model. The zero value makes none.
type Prefixes struct {
	// Depth is how many bytes of prompt text a key covers: 0 for no keys, or a result of
	// the function PrefixDepth.
	Depth  int64
	Secret PrefixSecret
}

// Key returns the prefix key of a scanned body: equal keys for bodies whose prompts begin
// with the same Depth bytes and that have the same model name and cache_salt. ok is false for
// a body without a key: it is malformed, its prompt is shorter than Depth, or HashPrefix was
// not called. A shorter prompt may have nothing but the instructions that most prompts begin
// with, and all such requests would go to one replica.
func (p Prefixes) Key(s *Scanner) (key PrefixKey, ok bool) {
	level, ok := PrefixLevel(p.Depth, s.prefix.levels)
	if !ok || s.Count().Malformed {
		return 0, false
	}
	h := newSipHash(littleEndian(p.Secret[:8]), littleEndian(p.Secret[8:]))
	h.writeUint64(s.prefix.digests[level-1])
	h.writeUint64(uint64(level))
	h.writeUint64(s.salt)
	h.write(s.Model())
	return PrefixKey(h.sum()), true
}

// PrefixKey is a value of PrefixHeader.
type PrefixKey uint64

// AppendText appends the 16 hexadecimal digits of the header.
func (k PrefixKey) AppendText(out []byte) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		out = append(out, hexDigits[k>>shift&15])
	}
	return out
}

// String returns the 16 hexadecimal digits of the header.
func (k PrefixKey) String() string { return string(k.AppendText(nil)) }

// PrefixLevel returns which of the hashes of a prompt its key is made of, from 1, given the
// depth of keys and how many hashes there are; ok is false if the prompt gets no key.
func PrefixLevel(depth int64, hashes int) (level int, ok bool) {
	level = levelOf(depth)
	return level, level > 0 && level <= hashes
}

// levelOf returns how many depths there are up to a depth.
func levelOf(depth int64) (level int) {
	for d := int64(MinPrefixDepth); d <= min(depth, MaxPrefixDepth); d *= 2 {
		level++
	}
	return level
}

// HashPrefix makes the Scanner hash the prompt's beginning to a depth, for Prefixes.Key and
// PrefixDigests. It is called before the first Write; 0 hashes nothing, as without the call.
func (s *Scanner) HashPrefix(depth int64) {
	s.prefix.limit = min(depth, MaxPrefixDepth)
	s.prefix.hash = newSipHash(textKey0, textKey1)
}

// PrefixDepth returns the depth to which the Scanner hashes.
func (s *Scanner) PrefixDepth() int64 { return s.prefix.limit }

// PrefixDigests returns hashes of the prompt's beginning up to MinPrefixDepth,
// 2·MinPrefixDepth, …, as far as the prompt and HashPrefix reach. They are not secret. The
// slice is valid until the next Write or Reset.
func (s *Scanner) PrefixDigests() []uint64 { return s.prefix.digests[:s.prefix.levels] }

// PromptDigest returns a hash of the prompt's text, as far as HashPrefix was asked for, and of
// what Count found; 0 without text.
func (s *Scanner) PromptDigest() uint64 {
	if s.prefix.size == 0 {
		return 0
	}
	h := s.prefix.hash
	h.writeUint64(uint64(s.Count().Text))
	h.writeUint64(uint64(s.Count().Tokens))
	return h.sum()
}

// The key of the text's hash. It is no secret: the text is hashed before its model, and so
// the model's secret, is known; Key adds the secret.
const textKey0, textKey1 = 0x6361736361646501, 0x7072656669786573

// prefixHash hashes the first bytes of the prompt's text in order of the body: strings of
// prompt, messages and input with escapes undone, without what separates them, and of
// each token id four bytes. Values that a later one of the same key replaces count, too.
type prefixHash struct {
	hash    sipHash
	limit   int64 // 0: nothing is hashed
	size    int64
	digests [prefixLevels]uint64
	levels  int // digests that are known
}

// open reports whether more text is wanted.
func (p *prefixHash) open() bool { return p.size < p.limit }

func (p *prefixHash) write(text []byte) {
	for len(text) > 0 && p.open() {
		next := int64(MinPrefixDepth) << p.levels
		n := min(int64(len(text)), next-p.size)
		p.hash.write(text[:n])
		if p.size += n; p.size == next {
			p.digests[p.levels] = p.hash.sum()
			p.levels++
		}
		text = text[n:]
	}
}

// writeID hashes a token id; 0 stands for what is no plain integer.
func (p *prefixHash) writeID(id int64) {
	if !p.open() {
		return
	}
	p.write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
}

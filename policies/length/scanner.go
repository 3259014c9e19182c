package length

import "github.com/cascadeinfer/cascade/policies"

const (
	// MaxModel is the longest model name that a Scanner keeps, in bytes.
	MaxModel = 256
	// MaxDepth is the deepest nesting of arrays and objects that a Scanner
	// follows; a deeper body counts as malformed.
	MaxDepth = 512
)

// Count is what a Scanner found in a body. The sizes of prompt, messages, input, system,
// instructions, tools and functions are added up.
type Count struct {
	// Bytes is the size of the body itself.
	Bytes int64
	// Text is the prompt's text in bytes, escapes undone: prompt strings,
	// message contents and their text parts, and the compact JSON of tools
	// and tool calls. Of a list of prompts it is the longest one.
	Text int64
	// Tokens is the exact number of token ids in the prompt; of a list of
	// lists, the longest one.
	Tokens policies.Tokens
	// Prompts is the number of prompts, or of documents to rank, if the body has a list of them; 0
	// for one prompt. OtherText and OtherTokens are the sums over those beside the longest; of
	// documents, each of which is read with the query, they are the repeated query.
	Prompts     int
	OtherText   int64
	OtherTokens policies.Tokens
	// Media is the number of content parts without text: images, audio,
	// files. Their size is in neither Text nor Tokens.
	Media int
	// MaxTokens is max_completion_tokens or, without it, max_tokens; 0 when
	// neither is a positive integer.
	MaxTokens policies.Tokens
	// Found reports that the body has a prompt, messages or input to count.
	Found bool
	// Malformed reports that the body is not one complete JSON value. What was counted before
	// the fault is still in the other fields.
	Malformed bool
}

// Scanner reads a JSON body in chunks of any size and counts its prompt.
//
// Keys match exactly, after escapes. When an object repeats a key, the last
// one counts, as it does for most servers (Python's json and pydantic among
// them); RFC 8259 §4 leaves it open. Everything that is not listed in Count is
// checked for syntax and otherwise ignored.
//
// The zero value is ready to use. It allocates nothing and takes about 1 KiB
// however long the body. One goroutine at a time may use it.
type Scanner struct {
	state      state
	bytes      int64 // offset of the chunk being read
	whitespace int64 // insignificant white space so far

	depth       int
	objects     [MaxDepth/64 + 1]uint64 // bit d: the container at depth d is an object
	roles       [levels]role            // of the containers at depth 1…levels-1
	registersAt [levels]register        // the sums they count for

	role     role     // of the value that comes next or is being read
	register register // the sum it counts for
	mark     int64    // where a raw value began

	sizes   [registers]size
	row     int64 // ids in the inner list being read
	hasText bool  // the part being read has a text
	limits  [2]int64

	keep   keep // where the string being read is stored
	length int64
	high   rune // the high surrogate just before, or 0
	hex    rune
	digits int // hex digits read, or characters of a literal
	word   string

	number   int64 // value of the number being read
	fraction bool  // it has a sign, a fraction or an exponent

	key      [24]byte // the longest key that matters has 21
	keyLen   int      // len(key)+1: too long to matter
	model    [MaxModel]byte
	modelLen int // MaxModel+1: too long to keep
}

// state is the state of the parser before the next byte.
type state byte

const (
	atValue      state = iota // a value must come
	atFirstValue              // a value or the end of the array
	atFirstKey                // a key or the end of the object
	atKey                     // a key
	atColon
	atNext // a comma or the end of the container
	atEnd  // nothing but white space
	inString
	inEscape
	inHex
	inLiteral
	inMinus
	inZero
	inInteger
	inPoint
	inFraction
	inE
	inSign
	inExponent
	broken
)

// keep says where the characters of a string are stored, besides being counted.
type keep byte

const (
	keepNothing keep = iota
	keepKey
	keepModel
)

// Reset makes the Scanner ready for another body.
func (s *Scanner) Reset() { *s = Scanner{} }

// Model returns the body's model name so far, unescaped, or nothing when
// there is none or it is longer than MaxModel. The slice is valid until the
// next Write or Reset.
func (s *Scanner) Model() []byte {
	if s.modelLen > MaxModel {
		return nil
	}
	return s.model[:s.modelLen]
}

// Count returns what was found so far. Malformed is true until the body is
// complete.
func (s *Scanner) Count() Count {
	c := Count{Bytes: s.bytes}
	for r, z := range s.sizes[:query] {
		c.Text += z.text
		if z.prompts > 1 && register(r) != messages {
			c.Prompts += z.prompts
			c.OtherText += max(z.allText-z.text, 0)
			c.OtherTokens += policies.Tokens(max(z.allIDs-z.tokens, 0))
		}
		c.Tokens += policies.Tokens(z.tokens)
		c.Media += z.media
		c.Found = c.Found || z.found && register(r) <= input
	}
	if n := s.sizes[documents].prompts + s.sizes[secondText].prompts; !c.Found && n > 1 {
		c.Prompts = n
		for _, q := range s.sizes[query:documents] {
			if q.prompts <= 1 { // else each document has a query of its own
				c.OtherText += int64(n-1) * q.text
			}
		}
	}
	c.MaxTokens = policies.Tokens(s.limits[1])
	if c.MaxTokens == 0 {
		c.MaxTokens = policies.Tokens(s.limits[0])
	}
	switch s.state {
	case atEnd:
	case inZero, inInteger, inFraction, inExponent:
		c.Malformed = s.depth > 0
	default:
		c.Malformed = true
	}
	return c
}

// Write reads the next chunk of the body. It keeps no reference to it, always reads all
// of it and never fails: a syntax error is reported by Count.
func (s *Scanner) Write(chunk []byte) (int, error) {
	for i := 0; i < len(chunk); {
		switch s.state {
		case inString:
			i += s.stringBytes(chunk[i:])
		case inEscape:
			s.escape(chunk[i])
			i++
		case inHex:
			s.hexDigit(chunk[i])
			i++
		case inLiteral:
			s.literal(chunk[i])
			i++
		case inMinus, inZero, inInteger, inPoint, inFraction, inE, inSign, inExponent:
			i += s.numberBytes(chunk[i:])
		case broken:
			i = len(chunk)
		default:
			if s.role == item || s.role == id {
				i += s.idBytes(chunk[i:])
				if i == len(chunk) {
					continue
				}
			}
			if c := chunk[i]; c == ' ' || c == '\n' || c == '\t' || c == '\r' {
				s.whitespace++
			} else {
				s.structure(c, s.bytes+int64(i))
			}
			i++
		}
	}
	s.bytes += int64(len(chunk))
	return len(chunk), nil
}

// structure handles one byte outside of strings, numbers and literals; at is
// its offset in the body.
func (s *Scanner) structure(c byte, at int64) {
	switch s.state {
	case atFirstValue, atValue:
		if c == ']' && s.state == atFirstValue {
			s.closeContainer(at)
			return
		}
		s.value(c, at)
	case atFirstKey, atKey:
		switch {
		case c == '"':
			s.keep, s.keyLen = keepKey, 0
			s.beginString()
		case c == '}' && s.state == atFirstKey:
			s.closeContainer(at)
		default:
			s.state = broken
		}
	case atColon:
		s.state = broken
		if c == ':' {
			s.state = atValue
		}
	case atNext:
		object := s.inObject()
		switch {
		case c == ',' && object:
			s.state = atKey
		case c == ',':
			s.state = atValue
			s.role, s.register = s.element()
		case c == '}' && object, c == ']' && !object:
			s.closeContainer(at)
		default:
			s.state = broken
		}
	default: // atEnd: one body is one value
		s.state = broken
	}
}

// value starts a value at its first byte.
func (s *Scanner) value(c byte, at int64) {
	switch c {
	case '"':
		s.keep = keepNothing
		if s.role == modelName {
			s.keep = keepModel
		}
		s.beginString()
	case '{', '[':
		s.openContainer(c, at)
	case 't':
		s.word, s.digits, s.state = "true", 1, inLiteral
	case 'f':
		s.word, s.digits, s.state = "false", 1, inLiteral
	case 'n':
		s.word, s.digits, s.state = "null", 1, inLiteral
	case '-':
		s.number, s.fraction, s.state = 0, true, inMinus
	case '0':
		s.number, s.fraction, s.state = 0, false, inZero
	case '1', '2', '3', '4', '5', '6', '7', '8', '9':
		s.number, s.fraction, s.state = int64(c-'0'), false, inInteger
	default:
		s.state = broken
	}
}

// endValue moves on after a whole value.
func (s *Scanner) endValue() {
	s.state = atNext
	if s.depth == 0 {
		s.state = atEnd
	}
}

func (s *Scanner) inObject() bool { return s.objects[s.depth/64]>>(s.depth%64)&1 != 0 }

func (s *Scanner) openContainer(c byte, at int64) {
	if s.depth == MaxDepth {
		s.state = broken
		return
	}
	s.depth++
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	if c == '{' {
		s.objects[word] |= bit
		s.state = atFirstKey
	} else {
		s.objects[word] &^= bit
		s.state = atFirstValue
	}
	if s.depth < levels {
		s.roles[s.depth], s.registersAt[s.depth] = s.role, s.register
	}
	if s.role != ignored {
		s.enter(c, at)
	}
	if c == '[' {
		s.role, s.register = s.element()
	}
}

func (s *Scanner) closeContainer(at int64) {
	if s.depth < levels && s.roles[s.depth] != ignored {
		s.leave(at)
	}
	s.depth--
	s.endValue()
}

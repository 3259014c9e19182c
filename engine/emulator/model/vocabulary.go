package model

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"
)

// Special tokens of the cl100k_base vocabulary. Text never encodes to them
// and they decode to no text.
const (
	EndOfText    Token = 100257
	MessageStart Token = 100264
	MessageEnd   Token = 100265
	// VocabularySize is one more than the largest token.
	VocabularySize Token = 100277
)

// Vocabulary maps between text and tokens. It is immutable and safe for
// concurrent use; replicas in one process may share one.
//
// It is OpenAI's cl100k_base, embedded in tiktoken-go: a real byte-pair
// encoding, so that bytes per token, and their spread over languages and
// code, are those of real traffic.
type Vocabulary struct {
	codec  tokenizer.Codec
	pieces []string // by token; "" for special and unused ids
	bytes  [256]Token
	words  []Token // what sample draws from
	marks  []Token // punctuation
	heads  []Token // first tokens of characters that take several
	// tails completes a character: the token that must follow a token which
	// ends inside a character.
	tails map[Token]Token
}

// NewVocabulary loads the vocabulary: tens of milliseconds, about 5 MB.
func NewVocabulary() (*Vocabulary, error) {
	codec, err := tokenizer.Get(tokenizer.Cl100kBase)
	if err != nil {
		return nil, fmt.Errorf("load vocabulary: %w", err)
	}
	v := &Vocabulary{codec: codec, pieces: make([]string, VocabularySize), tails: make(map[Token]Token)}
	var one [1]uint
	for id := range EndOfText {
		one[0] = uint(id)
		// Ids without a token are errors; they stay "".
		if v.pieces[id], err = codec.Decode(one[:]); err != nil {
			v.pieces[id] = ""
		}
		if len(v.pieces[id]) == 1 {
			v.bytes[v.pieces[id][0]] = id
		}
	}
	for _, word := range strings.Fields(wordList) {
		ids, err := v.Encode(" " + word)
		if err != nil {
			return nil, err
		}
		if len(ids) == 1 {
			v.words = append(v.words, ids[0])
		}
	}
	for _, mark := range []string{",", ".", ",", ".", ";", ":"} {
		ids, err := v.Encode(mark)
		if err != nil {
			return nil, err
		}
		v.marks = append(v.marks, ids...)
	}
	// Characters that this vocabulary encodes as several tokens. They make clients handle text
	// that arrives in parts.
	for _, c := range []string{"🌿", "龍", "ᚠ", "𝄞"} {
		ids, err := v.Encode(c)
		if err != nil {
			return nil, err
		}
		v.spell(ids)
	}
	return v, nil
}

// spell makes a character generable, unless one of its tokens already has another successor:
// completion is a function of the last token alone.
func (v *Vocabulary) spell(ids []Token) {
	if len(ids) < 2 {
		return
	}
	for i, t := range ids[:len(ids)-1] {
		if next, ok := v.tails[t]; ok && next != ids[i+1] {
			return
		}
	}
	v.heads = append(v.heads, ids[0])
	for i, t := range ids[:len(ids)-1] {
		v.tails[t] = ids[i+1]
	}
	// The last token of one character must not start the rest of another.
	delete(v.tails, ids[len(ids)-1])
}

// Shares in thousandths.
const (
	markShare  = 110
	spellShare = 4
)

// sample draws a token by the random number r.
func (v *Vocabulary) sample(r uint64, last Token) Token {
	if next, ok := v.tails[last]; ok {
		return next
	}
	pick := func(from []Token) Token { return from[(r/1000)%uint64(len(from))] }
	switch kind := r % 1000; {
	case kind < spellShare && len(v.heads) > 0:
		return pick(v.heads)
	case kind < markShare:
		return pick(v.marks)
	}
	return pick(v.words)
}

// Encode converts text to tokens. The joined pieces of the tokens are the text, whatever it is.
func (v *Vocabulary) Encode(text string) ([]Token, error) {
	ids, pieces, err := v.codec.Encode(text)
	if err != nil {
		return nil, fmt.Errorf("encode text of %d bytes: %w", len(text), err)
	}
	out := make([]Token, 0, len(ids))
	for i, id := range ids {
		// The library's splitter skips a few characters, such as U+007F: encode the bytes
		// between two of its tokens one by one.
		for text != "" && !strings.HasPrefix(text, pieces[i]) {
			out = append(out, v.bytes[text[0]])
			text = text[1:]
		}
		if text == "" {
			break
		}
		out = append(out, Token(id))
		text = text[len(pieces[i]):]
	}
	for i := range len(text) {
		out = append(out, v.bytes[text[i]])
	}
	return out, nil
}

// Piece returns the text of one token: any bytes, possibly a part of a character, or none.
func (v *Vocabulary) Piece(t Token) string {
	if int(t) >= len(v.pieces) {
		return ""
	}
	return v.pieces[t]
}

// Decode converts tokens to text. Bytes that form no character become U+FFFD.
func (v *Vocabulary) Decode(ids []Token) string {
	var d Decoder
	var b []byte
	for _, t := range ids {
		b = d.Append(b, v.Piece(t))
	}
	return string(d.Flush(b))
}

// Decoder joins pieces to valid UTF-8 and holds back an incomplete character. The zero value is
// ready to use.
type Decoder struct {
	held []byte // a proper prefix of a character, at most 3 bytes
}

// Append appends to dst what piece completes.
func (d *Decoder) Append(dst []byte, piece string) []byte {
	for len(d.held) > 0 && piece != "" {
		d.held = append(d.held, piece[0])
		if !utf8.FullRune(d.held) {
			piece = piece[1:]
			continue
		}
		if r, n := utf8.DecodeRune(d.held); r != utf8.RuneError || n > 1 {
			dst = append(dst, d.held...)
			piece = piece[1:]
		} else {
			// The new byte does not belong to the character: it stays in piece.
			dst = utf8.AppendRune(dst, utf8.RuneError)
		}
		d.held = d.held[:0]
	}
	for piece != "" {
		if !utf8.FullRuneInString(piece) {
			d.held = append(d.held, piece...)
			return dst
		}
		r, n := utf8.DecodeRuneInString(piece)
		dst = utf8.AppendRune(dst, r)
		piece = piece[n:]
	}
	return dst
}

// Holds reports whether the text so far ends inside a character.
func (d *Decoder) Holds() bool { return len(d.held) > 0 }

// Flush appends U+FFFD for an incomplete character at the end of a text.
func (d *Decoder) Flush(dst []byte) []byte {
	if len(d.held) > 0 {
		dst = utf8.AppendRune(dst, utf8.RuneError)
		d.held = d.held[:0]
	}
	return dst
}

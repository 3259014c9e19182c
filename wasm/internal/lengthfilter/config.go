package lengthfilter

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// ReadConfig parses a Config in JSON; an empty text is the zero Config. It accepts what
// encoding/json accepts, but refuses unknown and repeated keys. encoding/json would
// double the size of the module, and a proxy compiles the module on its main thread
// before it accepts any other configuration.
func ReadConfig(text []byte) (c Config, err error) {
	r := reader{rest: string(text)}
	if r.peek() == 0 && r.rest == "" {
		return c, nil
	}
	err = r.object(func(key string) (err error) {
		switch key {
		case "read_body":
			c.ReadBody, err = r.boolean()
		case "max_body":
			c.MaxBody, err = r.integer()
		case "models":
			err = r.array(func() error {
				var m Model
				err := r.object(func(key string) error { return r.model(&m, key) })
				c.Models = append(c.Models, m)
				return err
			})
		default:
			return errors.New("unknown field " + strconv.Quote(key))
		}
		return at(key, err)
	})
	if err == nil && r.peek() != 0 {
		err = r.want("the end")
	}
	return c, err
}

func (r *reader) model(m *Model, key string) (err error) {
	switch key {
	case "model":
		m.Name, err = r.text()
	case "bytes_per_token":
		m.BytesPerToken, err = r.number()
	case "adapters":
		err = r.array(func() error {
			a, err := r.text()
			m.Adapters = append(m.Adapters, a)
			return err
		})
	default:
		return errors.New("unknown field " + strconv.Quote(key))
	}
	return at(key, err)
}

// at adds the key to an error.
func at(key string, err error) error {
	if err != nil {
		return errors.New(key + ": " + err.Error())
	}
	return nil
}

// reader parses JSON from the beginning of a text.
type reader struct{ rest string }

func (r *reader) want(what string) error {
	found := r.rest[:min(len(r.rest), 20)]
	return errors.New("want " + what + ", found " + strconv.Quote(found))
}

// peek skips white space and returns the next byte, 0 at the end.
func (r *reader) peek() byte {
	r.rest = strings.TrimLeft(r.rest, " \t\r\n")
	if r.rest == "" {
		return 0
	}
	return r.rest[0]
}

// take skips white space and the byte b, if it is next.
func (r *reader) take(b byte) bool {
	if r.peek() != b {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

// list parses items between two brackets.
func (r *reader) list(open, end byte, item func() error) error {
	if !r.take(open) {
		return r.want(string(rune(open)))
	}
	if r.take(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if r.take(end) {
			return nil
		}
		if !r.take(',') {
			return r.want(string(rune(end)))
		}
	}
}

func (r *reader) array(item func() error) error { return r.list('[', ']', item) }

// object calls value for each key, before the key's value is parsed.
func (r *reader) object(value func(key string) error) error {
	var seen []string
	return r.list('{', '}', func() error {
		key, err := r.text()
		if err != nil {
			return err
		}
		if slices.Contains(seen, key) {
			return errors.New(key + ": repeated key")
		}
		seen = append(seen, key)
		if !r.take(':') {
			return r.want(":")
		}
		return value(key)
	})
}

func (r *reader) boolean() (bool, error) {
	r.peek()
	for _, word := range [...]string{"true", "false"} {
		if rest, ok := strings.CutPrefix(r.rest, word); ok {
			r.rest = rest
			return word == "true", nil
		}
	}
	return false, r.want("true or false")
}

// digits parses the text of a number: strconv accepts more than JSON does.
func (r *reader) digits() (string, error) {
	r.peek()
	n := 0
	run := func() int {
		from := n
		for n < len(r.rest) && '0' <= r.rest[n] && r.rest[n] <= '9' {
			n++
		}
		return n - from
	}
	is := func(set string) bool {
		ok := n < len(r.rest) && strings.IndexByte(set, r.rest[n]) >= 0
		if ok {
			n++
		}
		return ok
	}
	is("-")
	first := n
	whole := run()
	ok := whole == 1 || whole > 1 && r.rest[first] != '0'
	if is(".") {
		ok = run() > 0 && ok
	}
	if is("eE") {
		is("+-")
		ok = run() > 0 && ok
	}
	if !ok {
		return "", r.want("a number")
	}
	text := r.rest[:n]
	r.rest = r.rest[n:]
	return text, nil
}

func (r *reader) number() (float64, error) {
	text, err := r.digits()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

func (r *reader) integer() (int64, error) {
	text, err := r.digits()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// text parses a string.
func (r *reader) text() (string, error) {
	if !r.take('"') {
		return "", r.want("a string")
	}
	var out []byte
	for {
		if r.rest == "" || r.rest[0] < ' ' {
			return "", r.want("the string's end")
		}
		b := r.rest[0]
		r.rest = r.rest[1:]
		switch b {
		case '"':
			if !utf8.Valid(out) {
				return "", errors.New("a string is not UTF-8")
			}
			return string(out), nil
		case '\\':
			c, err := r.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, c)
		default:
			out = append(out, b)
		}
	}
}

// escape parses the characters after a backslash, including the second half of a
// surrogate pair.
func (r *reader) escape() (rune, error) {
	if r.rest != "" {
		b := r.rest[0]
		if i := strings.IndexByte(`"\/bfnrt`, b); i >= 0 {
			r.rest = r.rest[1:]
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
		if c, ok := hex4(r.rest); b == 'u' && ok {
			r.rest = r.rest[5:]
			if !utf16.IsSurrogate(c) {
				return c, nil
			}
			if low, ok := hex4(strings.TrimPrefix(r.rest, `\`)); ok && strings.HasPrefix(r.rest, `\`) {
				if pair := utf16.DecodeRune(c, low); pair != utf8.RuneError {
					r.rest = r.rest[6:]
					return pair, nil
				}
			}
			return utf8.RuneError, nil
		}
	}
	return 0, r.want("an escape")
}

// hex4 parses "u" and four hexadecimal digits.
func hex4(s string) (rune, bool) {
	if len(s) < 5 || s[0] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:5], 16, 16)
	return rune(n), err == nil
}

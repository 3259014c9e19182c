package length

import "github.com/cascadeinfer/cascade/policies"

func (s *Scanner) literal(c byte) {
	if c != s.word[s.digits] {
		s.state = broken
		return
	}
	if s.digits++; s.digits == len(s.word) {
		s.endValue()
	}
}

// numberBytes reads the bytes of a number and returns how many it read, 0 if the number
// ends before the first one.
func (s *Scanner) numberBytes(p []byte) int {
	c := p[0]
	digit := '0' <= c && c <= '9'
	switch s.state {
	case inInteger:
		for n, c := range p {
			d := int64(c) - '0'
			if uint64(d) > 9 {
				if n > 0 {
					return n
				}
				break
			}
			if s.number > (int64(policies.Unbounded)-d)/10 {
				s.number = int64(policies.Unbounded)
			} else {
				s.number = s.number*10 + d
			}
			if n == len(p)-1 {
				return len(p)
			}
		}
		s.afterInteger(c)
	case inZero:
		s.afterInteger(c)
	case inMinus:
		switch {
		case c == '0':
			s.state = inZero
		case digit:
			s.state = inInteger
		default:
			s.state = broken
		}
	case inPoint, inE, inSign, inFraction, inExponent:
		return s.fractionByte(c, digit)
	}
	if s.state == atNext || s.state == atEnd {
		return 0
	}
	return 1
}

// afterInteger reads the byte after a number's integer part.
func (s *Scanner) afterInteger(c byte) {
	switch c {
	case '.':
		s.fraction, s.state = true, inPoint
	case 'e', 'E':
		s.fraction, s.state = true, inE
	default:
		if '0' <= c && c <= '9' { // a digit after a leading zero
			s.state = broken
			return
		}
		s.numberValue()
		s.endValue()
	}
}

// fractionByte reads a byte of a fraction or an exponent.
func (s *Scanner) fractionByte(c byte, digit bool) int {
	switch {
	case digit && (s.state == inPoint || s.state == inFraction):
		s.state = inFraction
	case digit:
		s.state = inExponent
	case (c == '+' || c == '-') && s.state == inE:
		s.state = inSign
	case (c == 'e' || c == 'E') && s.state == inFraction:
		s.state = inE
	case s.state == inFraction || s.state == inExponent:
		s.numberValue()
		s.endValue()
		return 0
	default:
		s.state = broken
	}
	return 1
}

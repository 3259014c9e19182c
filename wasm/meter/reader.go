package meter

import "unicode/utf8"

// reader takes values from a part of the module. After the first error it
// returns zeros and stays where it is, so that callers check once per item.
type reader struct {
	b       []byte // the whole module
	at, end int    // next byte, and the end of this part
	section string
	err     *Error
}

// fail records why the module is refused, at an offset.
func (r *reader) fail(offset int, reason string) {
	if r.err == nil {
		r.err = &Error{r.section, offset, reason}
	}
	r.at = r.end
}

func (r *reader) left() int { return r.end - r.at }

func (r *reader) byte() byte {
	if r.at >= r.end {
		r.fail(r.at, "unexpected end")
		return 0
	}
	b := r.b[r.at]
	r.at++
	return b
}

// bytes returns n bytes of the module itself.
func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(r.left()) {
		r.fail(r.at, "unexpected end")
		return nil
	}
	b := r.b[r.at : r.at+int(n) : r.at+int(n)]
	r.at += int(n)
	return b
}

// part returns a reader of the next n bytes and steps over them.
func (r *reader) part(n uint32) reader {
	start := r.at
	r.bytes(n)
	if r.err != nil {
		return reader{section: r.section, err: r.err}
	}
	return reader{b: r.b, at: start, end: r.at, section: r.section}
}

// u32 reads an unsigned LEB128 number. Padding up to five bytes is lawful, and
// linkers use it; a sixth byte or a bit beyond the 32nd is not.
func (r *reader) u32() uint32 {
	if r.at < r.end && r.b[r.at] < 0x80 {
		r.at++
		return uint32(r.b[r.at-1])
	}
	start := r.at
	var v uint32
	for shift := 0; ; shift += 7 {
		b := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 28 && b > 0x0f {
			break
		}
		v |= uint32(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.fail(start, "number is longer than 32 bits")
	return 0
}

// signed reads a signed LEB128 number of 32, 33 or 64 bits.
func (r *reader) signed(bits int) int64 {
	start := r.at
	var v int64
	for shift := 0; shift < bits; shift += 7 {
		b := r.byte()
		if r.err != nil {
			return 0
		}
		v |= int64(b&0x7f) << shift
		if b >= 0x80 {
			continue
		}
		if rest := bits - shift; rest < 7 {
			// The last byte: its bits beyond the number must repeat the sign.
			sign := int8(b<<1) >> rest
			if sign != 0 && sign != -1 {
				break
			}
		}
		if shift+7 < 64 {
			v = v << (64 - shift - 7) >> (64 - shift - 7)
		}
		return v
	}
	r.fail(start, "signed number is too long")
	return 0
}

// name reads a length and that many bytes of UTF-8.
func (r *reader) name() string {
	start := r.at
	b := r.bytes(r.u32())
	if r.err == nil && !utf8.Valid(b) {
		r.fail(start, "name is not valid UTF-8")
	}
	return string(b)
}

// number reads a number that is at most most.
func (r *reader) number(what string, most int) uint32 {
	start := r.at
	n := r.u32()
	if r.err == nil && uint64(n) > uint64(most) {
		r.fail(start, limit(what, uint64(n), most))
		return 0
	}
	return n
}

// count reads the length of a vector whose items have at least one byte each.
func (r *reader) count(what string, most int) uint32 {
	start := r.at
	n := r.number(what, most)
	if r.err == nil && uint64(n) > uint64(r.left()) {
		r.fail(start, "more "+what+" than bytes")
		return 0
	}
	return n
}

// index reads an index that must be below have.
func (r *reader) index(what string, have int) uint32 {
	start := r.at
	n := r.u32()
	if r.err == nil && uint64(n) >= uint64(have) {
		r.fail(start, index(what, n, have))
		return 0
	}
	return n
}

// valueType reads the type of a value.
func (r *reader) valueType() byte {
	switch t := r.byte(); t {
	case typeI32, typeI64, typeF32, typeF64, typeFuncref, typeExternref:
		return t
	case typeV128:
		r.fail(r.at-1, "vectors (SIMD) are not allowed")
	default:
		r.fail(r.at-1, "unknown value type "+hexByte(t))
	}
	return 0
}

// refType reads the type of a reference.
func (r *reader) refType() byte {
	t := r.byte()
	if r.err == nil && t != typeFuncref && t != typeExternref {
		r.fail(r.at-1, "unknown reference type "+hexByte(t))
		return 0
	}
	return t
}

// limits reads the least and greatest size of a memory or table, in a unit;
// greatest is most where the module sets none, and lowered to most where it
// sets more. Beyond valid it is no WebAssembly.
func (r *reader) limits(what, unit string, most, valid uint32) (least, greatest uint32) {
	start := r.at
	flags := r.byte()
	if r.err == nil && flags > 1 {
		r.fail(start, what+" is shared, 64-bit or of another unknown kind: limits flag "+hexByte(flags))
	}
	least, greatest = r.u32(), most
	if flags == 1 {
		declared := r.u32()
		if r.err == nil && declared < least {
			r.fail(start, what+"'s maximum is below its minimum")
		}
		if r.err == nil && declared > valid {
			r.fail(start, limit(what+" "+unit+" as maximum", uint64(declared), int(valid)))
		}
		greatest = min(greatest, declared)
	}
	if r.err == nil && least > most {
		r.fail(start, limit(what+" "+unit, uint64(least), int(most)))
	}
	return least, greatest
}

package meter

// appendU32 appends an unsigned LEB128 number in its shortest form.
func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// appendSigned appends a signed LEB128 number in its shortest form.
func appendSigned(b []byte, v int64) []byte {
	for {
		low := byte(v) & 0x7f
		v >>= 7
		if v == 0 && low < 0x40 || v == -1 && low >= 0x40 {
			return append(b, low)
		}
		b = append(b, low|0x80)
	}
}

// appendName appends a length and the bytes.
func appendName(b []byte, s string) []byte {
	return append(appendU32(b, uint32(len(s))), s...)
}

// appendLimits appends a memory's or table's size; there is always a maximum.
func appendLimits(b []byte, least, greatest uint32) []byte {
	return appendU32(appendU32(append(b, 1), least), greatest)
}

// vector is a section in the making: its items, encoded, and their number.
type vector struct {
	n uint32
	b []byte
}

// appendSection appends a section that is a vector; nothing if it is empty.
func appendSection(b []byte, id byte, v vector) []byte {
	if v.n == 0 {
		return b
	}
	body := appendU32(nil, v.n)
	b = appendU32(append(b, id), uint32(len(body)+len(v.b)))
	return append(append(b, body...), v.b...)
}

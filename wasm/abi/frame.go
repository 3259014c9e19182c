package abi

import "github.com/cascadeinfer/cascade/policies"

// Magic begins every frame: "CSP1".
const Magic = 0x31505343

// HeaderSize is the header's length in version 1.0, in bytes. The package comment
// has the offsets of its fields.
const HeaderSize = 88

// MaxState bounds a policy's state, in bytes.
const MaxState = 4096

// maxFrameSize bounds a frame, in bytes, so that every offset fits into a uint32.
const maxFrameSize = 1 << 31

// Call holds the header fields that every frame has, whatever its kind.
type Call struct {
	ID   uint64 // identifies the call in logs and recordings
	Now  policies.Micros
	Seed uint64
	// State is the state that the policy's last call left. Room is the space for its
	// new state, in bytes. Both are at most MaxState, and 0 for kinds without state.
	State []byte
	Room  int
}

// frameAreas holds the areas of a frame, on either side.
type frameAreas struct {
	args    []byte
	records []byte // count·stride bytes
	count   int
	stride  int
	aux     []byte
}

// record returns record i, which is at least as long as the size given to parse.
func (p *frameAreas) record(i int) []byte { return p.records[i*p.stride : (i+1)*p.stride] }

// frameShape holds the sizes of a frame's areas, in bytes. size and args are
// multiples of 8.
type frameShape struct {
	kind   Kind
	args   int
	size   int // of a record
	count  int
	aux    int
	output int
}

func pad(n int) int { return (n + 7) &^ 7 }

// frameSize returns the length of a frame of that shape, or −1 if it exceeds
// maxFrameSize.
func (s frameShape) frameSize(c Call) int {
	if s.count > maxFrameSize/8 || s.aux > maxFrameSize/8 || s.aux < 0 || s.output > maxFrameSize/8 {
		return -1
	}
	n := int64(HeaderSize) + int64(s.args) + int64(s.size)*int64(s.count) + int64(pad(s.aux)) + int64(pad(c.Room)) + int64(pad(s.output))
	if n > maxFrameSize {
		return -1
	}
	return int(n)
}

// writeTo writes a frame's header and state into an arena, clears its output area,
// and returns its areas and length; with ErrShort, the length that it needs.
func (s frameShape) writeTo(arena []byte, c Call) (frameAreas, int, error) {
	if c.Room < 0 || c.Room > MaxState || len(c.State) > c.Room {
		return frameAreas{}, 0, ErrInput
	}
	n := s.frameSize(c)
	if n < 0 {
		return frameAreas{}, 0, ErrInput
	}
	if n > len(arena) {
		return frameAreas{}, n, ErrShort
	}
	b := arena[:n]
	arg := HeaderSize
	rec := arg + s.args
	aux := rec + s.size*s.count
	state := aux + pad(s.aux)
	out := state + pad(c.Room)

	h := b[:HeaderSize]
	put32(h, Magic)
	put16(h[4:], HeaderSize)
	put16(h[6:], uint16(s.kind))
	put64(h[8:], 0)
	put32(h[16:], uint32(arg))
	put32(h[20:], uint32(s.args))
	put32(h[24:], uint32(rec))
	put32(h[28:], uint32(s.count))
	put32(h[32:], uint32(s.size))
	put32(h[36:], uint32(aux))
	put32(h[40:], uint32(s.aux))
	put32(h[44:], uint32(state))
	put32(h[48:], uint32(len(c.State)))
	put32(h[52:], uint32(c.Room))
	put32(h[56:], uint32(out))
	put32(h[60:], uint32(s.output))
	put64(h[64:], c.ID)
	put64(h[72:], uint64(c.Now))
	put64(h[80:], c.Seed)
	// Clear the padding: a frame is the whole input of a call, so bytes that are
	// not written must not differ from one call to the next.
	if s.aux&7 != 0 {
		put64(b[state-8:], 0)
	}
	copy(b[state:], c.State)
	clear(b[state+len(c.State):])
	return frameAreas{args: b[arg:rec], records: b[rec:aux], count: s.count, stride: s.size, aux: b[aux : aux+s.aux]}, n, nil
}

// subframe returns the n bytes at offset off of a frame, and whether it has them.
func subframe(frame []byte, off, n uint32) ([]byte, bool) {
	end := uint64(off) + uint64(n)
	if end > uint64(len(frame)) {
		return nil, false
	}
	return frame[off:end:end], true
}

// parse checks a frame's header and sets the areas. args and size are the minimum
// lengths of arguments and records.
func (p *frameAreas) parse(frame []byte, kind Kind, args, size int) Status {
	if len(frame) < HeaderSize || uint64(len(frame)) > maxFrameSize {
		return BadFrame
	}
	h := frame[:HeaderSize]
	if u32(h) != Magic || u16(h[4:]) < HeaderSize || int(u16(h[4:])) > len(frame) {
		return BadFrame
	}
	if u16(h[6:]) != uint16(kind) || u32(h[8:]) != 0 {
		return Unsupported
	}
	count, stride := u32(h[28:]), u32(h[32:])
	bytes := uint64(count) * uint64(stride)
	if size == 0 { // a kind without records
		count, bytes = 0, 0
	}
	if count > 0 && stride < uint32(size) || bytes > uint64(len(frame)) {
		return BadFrame
	}
	arg, argLen := uint64(u32(h[16:])), uint64(u32(h[20:]))
	rec := uint64(u32(h[24:]))
	aux, auxLen := uint64(u32(h[36:])), uint64(u32(h[40:]))
	out, outLen := uint64(u32(h[56:])), uint64(u32(h[60:]))
	end := uint64(len(frame))
	if arg+argLen > end || rec+bytes > end || aux+auxLen > end || out+outLen > end || argLen < uint64(args) {
		return BadFrame
	}
	p.args = frame[arg : arg+argLen]
	p.records = frame[rec : rec+bytes]
	p.aux = frame[aux : aux+auxLen]
	p.count, p.stride = int(count), int(stride)
	return OK
}

// outputRoom returns the first n bytes of the output area, on the guest's side.
func outputRoom(frame []byte, n int) ([]byte, Status) {
	if len(frame) < HeaderSize {
		return nil, BadFrame
	}
	out, ok := subframe(frame, u32(frame[56:]), u32(frame[60:]))
	switch {
	case !ok:
		return nil, BadFrame
	case len(out) < n:
		return nil, Short
	}
	return out[:n], OK
}

// output returns the first n bytes of the output area, on the host's side. It checks
// the header again, because the guest may have changed it.
func output(frame []byte, n uint32) ([]byte, error) {
	if len(frame) < HeaderSize {
		return nil, ErrOutput
	}
	if n > u32(frame[60:]) {
		return nil, ErrOutput
	}
	out, ok := subframe(frame, u32(frame[56:]), n)
	if !ok {
		return nil, ErrOutput
	}
	return out, nil
}

// Context is a Call as the guest sees it. State is the space for the state; its
// first Length bytes are the present state.
type Context struct {
	Kind   Kind
	ID     uint64
	Now    policies.Micros
	Seed   uint64
	State  []byte // shares the frame's memory
	Length int
}

// DecodeContext returns a frame's Context, on the guest's side.
func DecodeContext(frame []byte) (Context, Status) {
	if len(frame) < HeaderSize || u32(frame) != Magic {
		return Context{}, BadFrame
	}
	state, ok := subframe(frame, u32(frame[44:]), u32(frame[52:]))
	n := u32(frame[48:])
	if !ok || uint64(n) > uint64(len(state)) {
		return Context{}, BadFrame
	}
	return Context{Kind(u16(frame[6:])), u64(frame[64:]), policies.Micros(u64(frame[72:])), u64(frame[80:]), state, int(n)}, OK
}

// SetState makes the first n bytes of Context.State the new state, on the guest's
// side. A larger n than the space for it counts as the whole space.
func SetState(frame []byte, n int) {
	if len(frame) >= HeaderSize && n >= 0 {
		put32(frame[48:], min(uint32(min(n, MaxState)), u32(frame[52:])))
	}
}

// DecodeState returns the state that a call left, on the host's side; room is the
// space that the call had for it. The state shares the frame's memory.
func DecodeState(frame []byte, room int) ([]byte, error) {
	if len(frame) < HeaderSize {
		return nil, ErrOutput
	}
	n := u32(frame[48:])
	state, ok := subframe(frame, u32(frame[44:]), n)
	if !ok || uint64(n) > uint64(max(room, 0)) || n > MaxState {
		return nil, ErrOutput
	}
	return state, nil
}

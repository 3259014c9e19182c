package host

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// dataSection returns a data section with these segments at these offsets.
func dataSection(all ...segment) []byte {
	body := binary.AppendUvarint(nil, uint64(len(all)))
	for _, s := range all {
		body = append(appendSigned(append(body, 0, opI32Const), int32(s.at)), opEnd)
		body = append(binary.AppendUvarint(body, uint64(len(s.bytes))), s.bytes...)
	}
	return append(binary.AppendUvarint([]byte{sectionData}, uint64(len(body))), body...)
}

// TestJoinedData checks that the initial memory is that of the original segments, whether
// they are ordered or not, overlapping, near or far.
func TestJoinedData(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	code := hosttest.Policy(hosttest.LeastLoad()).Encode()
	fewer := 0
	for range 60 {
		var all []segment
		want := make([]byte, 1<<16)
		at := 0
		for range r.IntN(40) {
			switch r.IntN(8) {
			case 0:
				at = r.IntN(1 << 15)
			case 1:
				at = max(at-r.IntN(100), 0)
			default:
				at += r.IntN(2 * maxZeroFill)
			}
			s := segment{uint32(at), make([]byte, r.IntN(80))}
			for i := range s.bytes {
				s.bytes[i] = byte(r.IntN(4)) // zeros among them
			}
			at += copy(want[at:], s.bytes)
			all = append(all, s)
		}
		original := append(bytes.Clone(code), dataSection(all...)...)
		joined := joinData(original)
		if n, _ := count(t, joined); n < len(all) {
			fewer++
		} else if n > len(all) {
			t.Errorf("%d segments of %d", n, len(all))
		}
		i := instance(t, load(t, Config{}, original))
		if got, _ := i.memory.Read(0, 1<<16); !bytes.Equal(got, want) {
			t.Fatalf("the memory begins otherwise than with %d segments", len(all))
		}
	}
	if fewer < 30 {
		t.Errorf("there were fewer segments %d times of 60", fewer)
	}
}

// count returns the number of segments of a module and of their bytes.
func count(t *testing.T, code []byte) (n, size int) {
	t.Helper()
	for at := headerSize; at < len(code); {
		id := code[at]
		length, w := binary.Uvarint(code[at+1:])
		at += 1 + w
		if id == sectionData {
			n, _ := binary.Uvarint(code[at:])
			return int(n), int(length)
		}
		at += int(length)
	}
	return 0, 0
}

// TestDataOfGo checks that a module of Go's linker has few segments after joining.
func TestDataOfGo(t *testing.T) {
	code := hosttest.Guest(t)
	n, size := count(t, code)
	joined, larger := count(t, joinData(code))
	t.Logf("%d segments in %d bytes, %d in %d", n, size, joined, larger)
	if joined > n/100 || larger > 2*size {
		t.Errorf("%d segments in %d bytes, of %d in %d", joined, larger, n, size)
	}
}

// TestDataThatStays checks that data sections that cannot be parsed are not changed.
func TestDataThatStays(t *testing.T) {
	code := hosttest.Policy(hosttest.LeastLoad()).Encode()
	good := dataSection(segment{8, []byte("a")}, segment{16, []byte("b")})
	passive := []byte{sectionData, 4, 1, 1, 1, 'a'}
	counted := append([]byte{sectionCount, 1, 2}, good...)
	global := []byte{sectionData, 7, 1, 0, 0x23, 0, opEnd, 1, 'a'}
	for name, data := range map[string][]byte{"none": nil, "passive": passive, "counted": counted, "a global": global,
		"cut": good[:len(good)-1], "longer": append([]byte{sectionData, good[1] + 1}, append(good[2:], 0)...)} {
		module := append(bytes.Clone(code), data...)
		if got := joinData(module); !bytes.Equal(got, module) {
			t.Errorf("%s: %x", name, got[len(code):])
		}
	}
	if got := joinData(append(bytes.Clone(code), good...)); bytes.Equal(got[len(code):], good) {
		t.Error("two segments that are near stay two")
	}
}

// FuzzJoinData checks that any bytes are accepted, and that a valid module stays valid.
func FuzzJoinData(f *testing.F) {
	code := hosttest.Policy(hosttest.LeastLoad()).Encode()
	f.Add(code)
	f.Add(append(bytes.Clone(code), dataSection(segment{8, []byte("a")}, segment{1 << 31, []byte("b")})...))
	f.Fuzz(func(t *testing.T, module []byte) {
		joined := joinData(module)
		config := meter.Config{Imports: nil}
		if _, _, err := meter.Instrument(module, config); err == nil {
			if _, _, err := meter.Instrument(joined, config); err != nil {
				t.Errorf("a good module is none after it: %v", err)
			}
		}
	})
}

package kvevents

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// memory returns how many bytes a decoder holds.
func (d *Decoder) memory() int {
	return cap(d.events)*int(unsafe.Sizeof(event{})) + 8*(cap(d.hashes)+cap(d.extra)) + 4*cap(d.tokens)
}

// memoryPerByte bounds what a decoder holds for each byte of a batch: the smallest event that is kept has 18
// bytes, AllBlocksCleared, and takes an event of 136 bytes. Slices may be twice as long as what they hold.
const memoryPerByte = 2 * 136 / 18

// checkMemory decodes a batch with a new decoder, and checks how much memory that takes.
func checkMemory(t *testing.T, payload []byte) error {
	t.Helper()
	d := Decoder{Model: "m"}
	// Decode drops what is large after an error, so its parts are looked at before.
	err := d.decode(payload)
	if most := 1024 + memoryPerByte*len(payload); d.memory() > most {
		t.Errorf("%d bytes of memory for a batch of %d, want %d at most: %v", d.memory(), len(payload), most, err)
	}
	if len(d.hashes) > maxBlocks || len(d.tokens) > maxTokens || len(d.extra) > maxBlocks {
		t.Errorf("%d hashes, %d tokens and %d extra keys exceed the limits: %v", len(d.hashes), len(d.tokens), len(d.extra), err)
	}
	return err
}

// forged returns a batch of one BlockStored whose fields are a list of their names and values.
func forged(fields ...[]byte) []byte {
	b := []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x80 | byte(1+len(fields)/2)}
	b = append(append(b, "\xa4type"...), "\xabBlockStored"...)
	return append(append(b, bytes.Join(fields, nil)...), 0)
}

func text(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }

// list returns an array that announces n elements and has those of the others, each one byte.
func list(announced, elements int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(announced)), make([]byte, elements)...)
}

// TestLimits checks that what exceeds a limit is refused before memory is allocated for it: lengths that are
// announced, and those of fields that are repeated.
func TestLimits(t *testing.T) {
	hashes, tokens, extra := text("block_hashes"), text("token_ids"), text("extra_keys")
	most := list(maxBlocks, maxBlocks)
	for _, test := range []struct {
		name    string
		payload []byte
		large   bool
	}{
		{"hashes that are not there", forged(hashes, list(1<<31, 10)), false},
		{"more hashes than allowed", forged(hashes, list(maxBlocks+1, maxBlocks+1)), true},
		{"twice as many hashes", forged(hashes, most, hashes, most), true},
		{"tokens that are not there", forged(tokens, list(1<<32-1, 10)), false},
		{"more tokens than allowed", forged(tokens, list(maxTokens+1, maxTokens+1)), true},
		{"more tokens than allowed together", forged(tokens, list(maxTokens, maxTokens), tokens, list(1, 1)), true},
		{"more extra keys than hashes", forged(hashes, list(1, 1), extra, list(1<<20, 1<<20)), false},
		{"extra keys without hashes", forged(extra, list(1<<20, 1<<20)), false},
		{"events that are not there", append([]byte{0x93, 0}, list(1<<31, 5)...), false},
		{"many empty events", append(append([]byte{0x93, 0}, list(1<<20, 0)...), bytes.Repeat([]byte{0x80}, 1<<20)...), false},
	} {
		err := checkMemory(t, test.payload)
		if err == nil || errors.Is(err, ErrLarge) != test.large {
			t.Errorf("%s: %v, want ErrLarge: %v", test.name, err, test.large)
		}
	}
	d := Decoder{Model: "m"}
	if err := d.Decode(forged(tokens, list(maxTokens, maxTokens), hashes, most)); err != nil {
		t.Error(err)
	}
	if err := d.Decode(forged(tokens, list(1, 1))); err != nil || d.memory() > 4*keptTokens {
		t.Errorf("%v: %d bytes are kept after a large batch", err, d.memory())
	}
}

// TestDecodeAllocates checks the bytes that a refused batch makes Decode allocate.
func TestDecodeAllocates(t *testing.T) {
	payload := forged(text("block_hashes"), list(1, 1), text("extra_keys"), list(1<<22, 1<<22))
	var before, after runtime.MemStats
	d := Decoder{Model: "m"}
	runtime.ReadMemStats(&before)
	err := d.Decode(payload)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; err == nil || n > 1<<20 {
		t.Errorf("%v: %d bytes allocated for a batch of %d", err, n, len(payload))
	}
}

// FuzzDecode checks that no bytes crash the decoder, that it allocates memory for what is there and not for what
// is announced, and that an Index stays consistent under whatever they say.
func FuzzDecode(f *testing.F) {
	golden := testkit.Must(os.ReadFile("testdata/batches/batches.txt"))
	for line := range bytes.Lines(golden) {
		if b, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("decode ")); ok {
			payload := make([]byte, len(b)/2)
			if _, err := hex.Decode(payload, b); err == nil {
				f.Add(payload)
			}
		}
	}
	f.Add(forged(text("block_hashes"), list(1<<31, 3), text("token_ids"), list(1<<31, 3)))
	f.Fuzz(func(t *testing.T, b []byte) {
		checkMemory(t, b)
		d := Decoder{Model: "m"}
		x := prefix.NewIndex(100, 0)
		for range 2 {
			if d.Decode(b) == nil {
				d.Apply(x)
			}
		}
		if x.Len() > 100 {
			t.Errorf("%d blocks in an index for 100", x.Len())
		}
		x.Match(prefix.Root("m", "", ""), make([]uint32, 100))
		x.SetCapacity(1)
	})
}

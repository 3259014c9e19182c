package kvpublisher

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// reader is the oracle of Batch: it decodes any MessagePack without floats of 4 bytes and extensions.
type reader struct {
	t testing.TB
	b []byte
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.t.Fatalf("%d of %d bytes", n, len(r.b))
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) number(bytes int) int {
	return int(binary.BigEndian.Uint64(append(make([]byte, 8-bytes), r.take(bytes)...)))
}

func (r *reader) value() any {
	switch c := r.take(1)[0]; {
	case c < 0x80:
		return uint64(c)
	case c&0xf0 == 0x80:
		return r.object(int(c & 15))
	case c&0xf0 == 0x90:
		return r.list(int(c & 15))
	case c&0xe0 == 0xa0:
		return string(r.take(int(c & 31)))
	case c == 0xc0:
		return nil
	case c == 0xc4:
		return r.take(r.number(1))
	case c == 0xcb:
		return math.Float64frombits(binary.BigEndian.Uint64(r.take(8)))
	case c >= 0xcc && c <= 0xcf:
		return binary.BigEndian.Uint64(append(make([]byte, 8-1<<(c-0xcc)), r.take(1<<(c-0xcc))...))
	case c >= 0xd9 && c <= 0xdb:
		return string(r.take(r.number(1 << (c - 0xd9))))
	case c == 0xdc || c == 0xdd:
		return r.list(r.number(2 << (c - 0xdc)))
	default:
		r.t.Fatalf("type %#x", c)
		return nil
	}
}

func (r *reader) list(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = r.value()
	}
	return list
}

func (r *reader) object(n int) map[string]any {
	m := make(map[string]any)
	for range n {
		key := r.value().(string)
		m[key] = r.value()
	}
	return m
}

// encodeAgain decodes a payload and encodes what is in it. ok is false if it has hashes of 32 bytes.
func encodeAgain(t *testing.T, payload []byte) (again []byte, ok bool) {
	r := &reader{t, payload}
	top := r.value().([]any)
	if len(r.b) > 0 || len(top) != 3 || top[2] != uint64(0) {
		t.Fatalf("%v, and %d bytes more", top, len(r.b))
	}
	var b Batch
	for _, e := range top[1].([]any) {
		e := e.(map[string]any)
		hashes, isList := e["block_hashes"].([]any)
		if isList {
			if _, long := hashes[0].([]byte); long {
				return nil, false
			}
		}
		switch e["type"] {
		case "BlockStored":
			s := Stored{BlockTokens: int(e["block_size"].(uint64))}
			for _, h := range hashes {
				s.Hashes = append(s.Hashes, kv.Hash(h.(uint64)))
			}
			if parent, has := e["parent_block_hash"].(uint64); has {
				s.Parent = kv.Hash(parent)
			}
			for _, id := range e["token_ids"].([]any) {
				s.IDs = append(s.IDs, model.Token(id.(uint64)))
			}
			if keys, has := e["extra_keys"].([]any)[0].([]any); has {
				s.Salt = keys[len(keys)-1].(string)
			}
			b.AddStored(s)
		case "BlockRemoved":
			b.AddRemoved(kv.Hash(hashes[0].(uint64)))
		case "AllBlocksCleared":
			b.AddCleared()
		default:
			t.Fatalf("event %v", e)
		}
	}
	return b.Take(top[0].(float64)), true
}

// Batches are encoded as stock vLLM does it, byte for byte.
func TestBatchesOfVLLM(t *testing.T) {
	names, equal := 0, 0
	var name string
	for line := range strings.Lines(string(testkit.Must(os.ReadFile("testdata/vllm-0.32.0.txt")))) {
		line = strings.TrimSpace(line)
		payload, err := hex.DecodeString(line)
		if err != nil || line == "" {
			name = line
			continue
		}
		names++
		switch got, ok := encodeAgain(t, payload); {
		case !ok:
			if !strings.HasPrefix(name, "32-byte hashes") {
				t.Errorf("%s: not encoded", name)
			}
		case string(got) != string(payload):
			t.Errorf("%s:\n%x, want\n%x", name, got, payload)
		default:
			equal++
		}
	}
	if names != 12 || equal != 10 {
		t.Errorf("%d of %d payloads are equal, want 10 of 12", equal, names)
	}
}

// What no recorded batch has: adapters with and without a salt, long lists and texts, numbers of every width.
func TestBatch(t *testing.T) {
	long, longer := strings.Repeat("s", 40), strings.Repeat("l", 300)
	for _, tc := range []struct {
		stored Stored
		want   map[string]any
	}{
		{Stored{Hashes: []kv.Hash{1, 127}, IDs: []model.Token{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1}, BlockTokens: 4, Origin: batch.Origin{Salt: "s", Adapter: "sql", AdapterID: 2}},
			map[string]any{"lora_id": uint64(2), "lora_name": "sql", "parent_block_hash": nil, "extra_keys": []any{[]any{"sql", "s"}, []any{"sql"}}}},
		{Stored{Hashes: []kv.Hash{1<<64 - 1}, Parent: 1 << 63, IDs: make([]model.Token, 1<<16), BlockTokens: 1 << 16, Origin: batch.Origin{Salt: "s"}},
			map[string]any{"lora_id": nil, "lora_name": nil, "parent_block_hash": uint64(1 << 63), "extra_keys": []any{nil}}},
		{Stored{Hashes: []kv.Hash{128}, IDs: make([]model.Token, 16), BlockTokens: 16, Origin: batch.Origin{Salt: longer, Adapter: long, AdapterID: 300}},
			map[string]any{"lora_id": uint64(300), "lora_name": long, "extra_keys": []any{[]any{long, longer}}}},
		{Stored{Hashes: []kv.Hash{128}, IDs: make([]model.Token, 15), BlockTokens: 15, Origin: batch.Origin{Salt: strings.Repeat("x", 1<<16)}},
			map[string]any{"extra_keys": []any{[]any{strings.Repeat("x", 1<<16)}}}},
	} {
		var b Batch
		b.AddStored(tc.stored)
		if b.Len() != 1 {
			t.Errorf("%d events", b.Len())
		}
		r := &reader{t, b.Take(1.5)}
		top := r.value().([]any)
		event := top[1].([]any)[0].(map[string]any)
		if top[0] != 1.5 || len(top[1].([]any)) != 1 || len(r.b) > 0 || len(event) != 11 || b.Len() != 0 {
			t.Fatalf("%v", top)
		}
		for i, id := range event["token_ids"].([]any) {
			if id != uint64(tc.stored.IDs[i]) {
				t.Fatalf("id %d: %v, want %v", i, id, tc.stored.IDs[i])
			}
		}
		for i, h := range event["block_hashes"].([]any) {
			if h != uint64(tc.stored.Hashes[i]) {
				t.Fatalf("hash %d: %v, want %v", i, h, tc.stored.Hashes[i])
			}
		}
		for key, want := range tc.want {
			if got := event[key]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v, want %v", key, got, want)
			}
		}
	}
}

// Once its buffer has grown, a batch allocates its payload only.
func TestBatchAllocations(t *testing.T) {
	s := Stored{Hashes: make([]kv.Hash, 100), IDs: make([]model.Token, 1600), BlockTokens: 16}
	var b Batch
	if n := testing.AllocsPerRun(100, func() {
		b.AddRemoved(1)
		b.AddStored(s)
		b.Take(1)
	}); n > 1 {
		t.Errorf("%v allocations per batch", n)
	}
}

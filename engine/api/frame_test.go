package api

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

const (
	testHandle = "00112233445566778899aabbccddeeff"
	testDigest = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// bodies are the frames as Python writes them, and what they mean.
var bodies = map[string]Frame{
	`{"hello": {"version": 2, "replica": "r0", "incarnation": 7}}`: {Hello: &Hello{2, "r0", 7}},
	`{"welcome": {"version": 2, "fingerprint": "f", "ranks": 1, "blocks": 3, "handles": [{"kind": "memfd", "bytes": 192}], "regions": [{"handle": 0, "rank": 0, "offset": 0, "stride": 64, "bytes": 64}]}}`: {Welcome: plainWelcome()},
	`{"call": {"id": 4, "op": "fill", "reservation": "r", "from": 2, "ids": "AQAAAAABAAA=", "computed": 3}}`:                                                                                                {Call: &Call{ID: 4, Op: Fill, Reservation: "r", From: 2, IDs: IDs{1, 256}, Computed: 3}},
	`{"call": {"id": 5, "op": "a later one"}}`:                  {Call: &Call{ID: 5, Op: "a later one"}},
	`{"cancel": {"id": 4}}`:                                     {Cancel: &Cancel{4}},
	`{"answer": {"id": 4, "blocks": [1], "length": 7}}`:         {Answer: &Answer{ID: 4, Blocks: []uint32{1}, Length: 7}},
	`{"answer": {"id": 4, "code": "full", "error": "no room"}}`: {Answer: &Answer{ID: 4, Code: Full, Error: "no room"}},
	`{"offer": {"handle": "` + testHandle + `", "digest": "` + testDigest + `", "blocks": [1, 2], "sums": [3, 4]}}`:                   {Offer: &Offer{testHandle, testDigest, []uint32{1, 2}, []uint32{3, 4}, ""}},
	`{"offer": {"handle": "` + testHandle + `", "error": "full"}}`:                                                                    {Offer: &Offer{Handle: testHandle, Error: "full"}},
	`{"released": {"handle": "` + testHandle + `"}}`:                                                                                  {Released: &Released{testHandle}},
	`{"fetch": {"id": 5, "holder": "r1", "handle": "` + testHandle + `", "digest": "` + testDigest + `", "first": 2, "blocks": [0]}}`: {Fetch: &Fetch{5, "r1", testHandle, testDigest, 2, []uint32{0}}},
	`{"fetched": {"id": 5}}`:                                         {Fetched: &Fetched{ID: 5}},
	`{"fetched": {"id": 5, "error": "gone"}, "new": true}`:           {Fetched: &Fetched{5, "gone"}},
	`{"released": {"handle": "` + testHandle + `", "why": "lease"}}`: {Released: &Released{testHandle}},
}

// frame returns a body with its length before it.
func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func TestRead(t *testing.T) {
	for body, want := range bodies {
		got, err := ReadFrame(bytes.NewReader(frame(body)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
		again, err := ReadFrame(bytes.NewReader(testkit.Must(want.Append(nil))))
		if err != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s became %+v, %v", body, again, err)
		}
	}
}

// Every bound of the protocol is checked, and the error names the frame and the member.
func TestRefused(t *testing.T) {
	many := make([]uint32, maxList+1)
	for want, f := range map[string]Frame{
		`with the members []`:                                   {},
		`with the members ["hello" "released"]`:                 {Hello: &Hello{}, Released: &Released{}},
		`hello: version 1 of the protocol, but this side has 2`: {Hello: &Hello{1, "r", 1}},
		`hello: replica of 0 bytes`:                             {Hello: &Hello{2, "", 1}},
		`hello: replica of 257 bytes`:                           {Hello: &Hello{2, strings.Repeat("r", 257), 1}},
		`offer: 1 checksums of 2 blocks`:                        {Offer: &Offer{testHandle, testDigest, []uint32{1, 2}, []uint32{1}, ""}},
		`offer: 0 blocks`:                                       {Offer: &Offer{testHandle, testDigest, nil, nil, ""}},
		`offer: handle "x"`:                                     {Offer: &Offer{"x", testDigest, []uint32{1}, []uint32{1}, ""}},
		`offer: digest "00"`:                                    {Offer: &Offer{testHandle, "00", []uint32{1}, []uint32{1}, ""}},
		`offer: an error of 1025 bytes`:                         {Offer: &Offer{Handle: testHandle, Error: strings.Repeat("x", 1025)}},
		`released: handle ""`:                                   {Released: &Released{}},
		`fetch: first block -1`:                                 {Fetch: &Fetch{1, "r", testHandle, testDigest, -1, []uint32{1}}},
		`fetch: holder of 0 bytes`:                              {Fetch: &Fetch{1, "", testHandle, testDigest, 0, []uint32{1}}},
		`fetch: 131073 blocks`:                                  {Fetch: &Fetch{1, "r", testHandle, testDigest, 0, many}},
		`fetched: an error of 1025 bytes`:                       {Fetched: &Fetched{1, strings.Repeat("x", 1025)}},
		`offer: 3 checksums of 2 blocks`:                        {Offer: &Offer{testHandle, testDigest, []uint32{1, 2}, []uint32{1, 2, 3}, ""}},
		`call: op of 0 bytes`:                                   {Call: &Call{ID: 1}},
		`call: leg of 257 bytes`:                                {Call: &Call{Op: Thaw, Leg: strings.Repeat("l", 257)}},
		`call: reservation of 257 bytes`:                        {Call: &Call{Op: Release, Reservation: strings.Repeat("l", 257)}},
		`answer: an error of 1025 bytes`:                        {Answer: &Answer{Error: strings.Repeat("x", 1025)}},
	} {
		_, err := f.Append(nil)
		testkit.WantError(t, err, want)
	}
	_, err := ReadFrame(bytes.NewReader([]byte{1, 0, 0, 1}))
	testkit.WantError(t, err, "a frame of 16777217 bytes, more than 16777216")
	_, err = ReadFrame(bytes.NewReader(frame(`{"call": {"op": "fill", "ids": "AQAA"}}`)))
	testkit.WantError(t, err, "no numbers of four bytes")
	_, err = ReadFrame(bytes.NewReader(frame(`{"later": 1}`)))
	testkit.WantError(t, err, "want one that is known")
	_, err = ReadFrame(bytes.NewReader(frame(`{"offer": {"blocks": [-1]}}`)))
	testkit.WantError(t, err, "cannot unmarshal")
}

// The largest request fits into a frame.
func TestLargestFrame(t *testing.T) {
	blocks := make([]uint32, maxList)
	for i := range blocks {
		blocks[i] = 1<<32 - 1
	}
	testkit.Must(Frame{Answer: &Answer{Blocks: blocks, IDs: make(IDs, 2<<20)}}.Append(nil))
	b, err := Frame{Offer: &Offer{testHandle, testDigest, blocks, blocks, ""}}.Append(nil)
	testkit.NoError(t, err)
	if len(b) > MaxFrame+headBytes {
		t.Errorf("%d bytes", len(b))
	}
}

// The digest is the same in Python, and depends on each of its parts.
func TestDigest(t *testing.T) {
	// hashlib.sha256(b"\1\0\0\0f\2\0\0\0lo\0\0\0\0\1\0\0\0\0\1\0\0").hexdigest()
	if got, want := Digest("f", "lo", "", []uint32{1, 256}), "6dd3e874a11834e0afdde0aa0c2adc6fabf22fd372b1872e39039ee8b7d1fb34"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	seen := map[string]bool{}
	for _, d := range []string{Digest("f", "a", "s", []uint32{1}), Digest("g", "a", "s", []uint32{1}), Digest("f", "b", "s", []uint32{1}), Digest("f", "a", "t", []uint32{1}),
		Digest("f", "a", "s", []uint32{2}), Digest("f", "a", "s", []uint32{1, 0}), Digest("fa", "", "s", []uint32{1})} {
		seen[d] = true
	}
	if len(seen) != 7 {
		t.Errorf("%d of 7 digests differ", len(seen))
	}
}

// FuzzRead checks that the decoder never panics, and that what it accepts survives Append.
func FuzzRead(f *testing.F) {
	for body := range bodies {
		f.Add(frame(body))
	}
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		out, err := got.Append(nil)
		if err != nil {
			return // escapes can make it longer than MaxFrame
		}
		again, err := ReadFrame(bytes.NewReader(out))
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}

// plainWelcome is that of an engine with one memory of three blocks.
func plainWelcome() *Welcome {
	return &Welcome{Version: 2, Fingerprint: "f", Ranks: 1, Blocks: 3, Handles: []Handle{{Kind: Memfd, Bytes: 192}}, Regions: []Region{{Stride: 64, Bytes: 64}}}
}

// layered is the welcome of an engine of two ranks, whose blocks have a part in each of two memories.
func layered() *Welcome {
	return &Welcome{Version: 2, Fingerprint: "f", Ranks: 2, Blocks: 3, Handles: []Handle{{Kind: Memfd, Bytes: 192}, {Kind: CUDA, Bytes: 400, CUDA: []byte("h")}},
		Regions: []Region{{Stride: 64, Bytes: 32}, {Offset: 32, Stride: 64, Bytes: 32}, {Handle: 1, Rank: 1, Offset: 100, Stride: 100, Bytes: 100}}}
}

// A memory that the migrator could not use rightly is refused, and the error names what is wrong.
func TestWelcome(t *testing.T) {
	for _, w := range []*Welcome{plainWelcome(), layered()} {
		testkit.Must(Frame{Welcome: w}.Append(nil))
	}
	for want, edit := range map[string]func(*Welcome){
		"version 1 of the protocol":                            func(w *Welcome) { w.Version = 1 },
		"fingerprint of 0 bytes":                               func(w *Welcome) { w.Fingerprint = "" },
		"welcome: 0 blocks":                                    func(w *Welcome) { w.Blocks = 0 },
		"0 ranks, must be 1 to 256":                            func(w *Welcome) { w.Ranks = 0 },
		"rank 2 of 3 is missing: it has no region":             func(w *Welcome) { w.Ranks = 3 },
		"region 2: rank 1 of 1":                                func(w *Welcome) { w.Ranks = 1 },
		"0 handles and 3 regions":                              func(w *Welcome) { w.Handles = nil },
		"2 handles and 0 regions":                              func(w *Welcome) { w.Regions = nil },
		"254 handles":                                          func(w *Welcome) { w.Handles = make([]Handle, MaxHandles+1) },
		"1025 regions":                                         func(w *Welcome) { w.Regions = make([]Region, maxRegions+1) },
		`handle 1: kind "nvme": must be memfd or cuda`:         func(w *Welcome) { w.Handles[1].Kind = "nvme" },
		`handle 1 of kind "cuda": 400 bytes, described by 0`:   func(w *Welcome) { w.Handles[1].CUDA = nil },
		`handle 0 of kind "memfd": 0 bytes`:                    func(w *Welcome) { w.Handles[0].Bytes = 0 },
		"region 0: handle 2 of 2":                              func(w *Welcome) { w.Regions[0].Handle = 2 },
		"region 0: handle -1 of 2":                             func(w *Welcome) { w.Regions[0].Handle = -1 },
		"region 0: rank -1 of 2":                               func(w *Welcome) { w.Regions[0].Rank = -1 },
		"region 0: offset -1":                                  func(w *Welcome) { w.Regions[0].Offset = -1 },
		"region 0: offset 0, stride 64, 65 bytes":              func(w *Welcome) { w.Regions[0].Bytes = 65 },
		"region 2: block 2 ends after the 400 bytes of":        func(w *Welcome) { w.Regions[2].Offset = 101 },
		"region 0: block 3 ends after the 192 bytes of":        func(w *Welcome) { w.Blocks = 4 },
		"region 1 overlaps region 0 in the memory of handle 0": func(w *Welcome) { w.Regions[1].Offset = 31 },
		"region 1 overlaps region 0":                           func(w *Welcome) { w.Regions[0].Offset, w.Regions[1].Offset = 32, 32 },
		"region 2 overlaps region 0":                           func(w *Welcome) { w.Regions[2] = Region{Rank: 1, Offset: 64, Stride: 40, Bytes: 40} },
		"region 1 overlaps":                                    func(w *Welcome) { w.Regions[1].Bytes, w.Handles[0].Bytes = 40, 200 },
		"table: blocks of 0 tokens":                            func(w *Welcome) { w.Table = &Table{} },
		"table: blocks of 4 tokens of -1 bytes":                func(w *Welcome) { w.Table = &Table{BlockTokens: 4, TokenBytes: -1} },
	} {
		w := layered()
		edit(w)
		_, err := Frame{Welcome: w}.Append(nil)
		testkit.WantError(t, err, want)
	}
}

// FuzzWelcome checks that no two parts of blocks of an accepted layout have a byte in common, and that none leaves its memory.
func FuzzWelcome(f *testing.F) {
	f.Add(3, int64(192), int64(0), int64(64), int64(32), int64(32), int64(64), int64(32))
	f.Add(4, int64(100), int64(0), int64(30), int64(10), int64(25), int64(30), int64(5))
	f.Fuzz(func(t *testing.T, blocks int, size, o1, s1, b1, o2, s2, b2 int64) {
		w := Welcome{Version: 2, Fingerprint: "f", Ranks: 1, Blocks: blocks, Handles: []Handle{{Kind: Memfd, Bytes: size}},
			Regions: []Region{{Offset: o1, Stride: s1, Bytes: b1}, {Offset: o2, Stride: s2, Bytes: b2}}}
		if blocks > 50 || size > 10_000 || w.validate() != nil {
			return
		}
		used := make([]bool, size)
		for _, r := range w.Regions {
			for b := range int64(blocks) {
				for i := range r.Bytes {
					if at := r.Offset + b*r.Stride + i; used[at] {
						t.Fatalf("%+v: byte %d is in two parts", w, at)
					} else {
						used[at] = true
					}
				}
			}
		}
	})
}

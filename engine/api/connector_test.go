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
	`{"hello": {"version": 1, "replica": "r0", "incarnation": 7}}`:                                                                   {Hello: &Hello{1, "r0", 7}},
	`{"welcome": {"version": 1, "fingerprint": "f", "slots": 3, "slot_bytes": 64}}`:                                                  {Welcome: &Welcome{1, "f", 3, 64}},
	`{"offer": {"handle": "` + testHandle + `", "digest": "` + testDigest + `", "slots": [1, 2], "sums": [3, 4]}}`:                   {Offer: &Offer{testHandle, testDigest, []uint32{1, 2}, []uint32{3, 4}, ""}},
	`{"offer": {"handle": "` + testHandle + `", "error": "full"}}`:                                                                   {Offer: &Offer{Handle: testHandle, Error: "full"}},
	`{"released": {"handle": "` + testHandle + `"}}`:                                                                                 {Released: &Released{testHandle}},
	`{"fetch": {"id": 5, "holder": "r1", "handle": "` + testHandle + `", "digest": "` + testDigest + `", "first": 2, "slots": [0]}}`: {Fetch: &Fetch{5, "r1", testHandle, testDigest, 2, []uint32{0}}},
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
	slots := make([]uint32, maxSlots+1)
	for want, f := range map[string]Frame{
		`with the members []`:                                   {},
		`with the members ["hello" "released"]`:                 {Hello: &Hello{}, Released: &Released{}},
		`hello: version 2 of the protocol, but this side has 1`: {Hello: &Hello{2, "r", 1}},
		`hello: replica of 0 bytes`:                             {Hello: &Hello{1, "", 1}},
		`hello: replica of 257 bytes`:                           {Hello: &Hello{1, strings.Repeat("r", 257), 1}},
		`welcome: version 0`:                                    {Welcome: &Welcome{0, "f", 1, 1}},
		`welcome: fingerprint of 0 bytes`:                       {Welcome: &Welcome{1, "", 1, 1}},
		`welcome: 0 slots of 1 bytes`:                           {Welcome: &Welcome{1, "f", 0, 1}},
		`welcome: 1 slots of 0 bytes`:                           {Welcome: &Welcome{1, "f", 1, 0}},
		`welcome: 1024 slots of 4294967297 bytes`:               {Welcome: &Welcome{1, "f", 1024, 1<<32 + 1}},
		`offer: 1 checksums of 2 slots`:                         {Offer: &Offer{testHandle, testDigest, []uint32{1, 2}, []uint32{1}, ""}},
		`offer: 0 slots`:                                        {Offer: &Offer{testHandle, testDigest, nil, nil, ""}},
		`offer: handle "x"`:                                     {Offer: &Offer{"x", testDigest, []uint32{1}, []uint32{1}, ""}},
		`offer: digest "00"`:                                    {Offer: &Offer{testHandle, "00", []uint32{1}, []uint32{1}, ""}},
		`offer: an error of 1025 bytes`:                         {Offer: &Offer{Handle: testHandle, Error: strings.Repeat("x", 1025)}},
		`released: handle ""`:                                   {Released: &Released{}},
		`fetch: first block -1`:                                 {Fetch: &Fetch{1, "r", testHandle, testDigest, -1, []uint32{1}}},
		`fetch: holder of 0 bytes`:                              {Fetch: &Fetch{1, "", testHandle, testDigest, 0, []uint32{1}}},
		`fetch: 131073 slots`:                                   {Fetch: &Fetch{1, "r", testHandle, testDigest, 0, slots}},
		`fetched: an error of 1025 bytes`:                       {Fetched: &Fetched{1, strings.Repeat("x", 1025)}},
	} {
		_, err := f.Append(nil)
		testkit.WantError(t, err, want)
	}
	_, err := ReadFrame(bytes.NewReader([]byte{0, 0x40, 0, 1}))
	testkit.WantError(t, err, "a frame of 4194305 bytes, more than 4194304")
	_, err = ReadFrame(bytes.NewReader(frame(`{"later": 1}`)))
	testkit.WantError(t, err, "want one that is known")
	_, err = ReadFrame(bytes.NewReader(frame(`{"offer": {"slots": [-1]}}`)))
	testkit.WantError(t, err, "cannot unmarshal")
}

// The largest request fits into a frame.
func TestLargestFrame(t *testing.T) {
	slots := make([]uint32, maxSlots)
	for i := range slots {
		slots[i] = 1<<32 - 1
	}
	b, err := Frame{Offer: &Offer{testHandle, testDigest, slots, slots, ""}}.Append(nil)
	testkit.NoError(t, err)
	if len(b) > MaxFrame+HeadBytes {
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

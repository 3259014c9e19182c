package kvport

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/engine/api"
)

// What an engine answers to PinPrefix is validated: whole blocks of the pool, as many as were asked for.
func TestPinPrefix(t *testing.T) {
	var reply *api.Answer
	var refusal error
	var asked *api.Call
	f := &fakeEngine{pin: func(r *api.Call) (*api.Answer, error) {
		asked = r
		return reply, refusal
	}}
	c := newConnected(t, f)
	p := Prefix{Model: "m", Salt: "tenant", IDs: []uint32{9, 8, 7, 6, 5, 4, 3, 2, 1}}
	for _, x := range []struct {
		name    string
		reserve bool
		cached  uint64
		blocks  []uint32
		ok      bool
	}{
		{"nothing is cached", false, 0, nil, true},
		{"a block is cached", false, 4, []uint32{3}, true},
		{"all is cached", true, 8, []uint32{3, 15}, true},
		{"one is reserved", true, 4, []uint32{3, 1}, true},
		{"a block too few", true, 4, []uint32{3}, false},
		{"a block too many", false, 4, []uint32{3, 1}, false},
		{"half a block", false, 6, []uint32{3}, false},
		{"more than there are ids", false, 12, []uint32{1, 2, 3}, false},
		{"a block outside the pool", false, 4, []uint32{16}, false},
		{"a huge number", false, 1 << 63, nil, false},
	} {
		reply = &api.Answer{Cached: x.cached, Blocks: x.blocks}
		got, err := c.PinPrefix(t.Context(), "r", p, x.reserve)
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", x.name, err)
		}
		if want := (PinnedPrefix{Cached: int(x.cached), BlockTokens: 4, Blocks: x.blocks}); x.ok && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", x.name, got, want)
		}
		if asked.Reservation != "r" || asked.Model != "m" || asked.CacheSalt != "tenant" || asked.Rest != x.reserve || len(asked.IDs) != 9 {
			t.Errorf("%s: asked %v", x.name, asked)
		}
	}
	for code, want := range map[api.Code]error{api.Full: ErrFull, api.Unsupported: ErrNoPrefixes, api.NotFound: ErrNotFound} {
		refusal = api.Refuse(code, "no")
		if _, err := c.PinPrefix(t.Context(), "r", p, true); !errors.Is(err, want) {
			t.Errorf("%v: %v", code, err)
		}
	}
}

func TestCommitPrefix(t *testing.T) {
	var asked *api.Call
	c := newConnected(t, &fakeEngine{commit: func(r *api.Call) error { asked = r; return nil }})
	if err := c.CommitPrefix(t.Context(), "r", 8); err != nil || asked.Reservation != "r" || asked.Tokens != 8 {
		t.Errorf("%v, %v", asked, err)
	}
	if err := c.CommitPrefix(t.Context(), "r", -1); err == nil {
		t.Error("a negative number was committed")
	}
}

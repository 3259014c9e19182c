package blocktable

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// root is that of an engine with one adapter.
func root(model, salt string) (Root, error) {
	r := Root{Salt: uint64(len(salt))}
	switch model {
	case "", "m":
	case "adapter":
		r.Adapter, r.Salt = 9, r.Salt^9
	default:
		return r, errors.New("no such model")
	}
	return r, nil
}

// ids are those of a prompt of engine.add.
func ids(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(100 + i)
	}
	return out
}

// What one request has computed is pinned for requests of the same model and salt; a commit makes further
// blocks findable, and the end of the session frees what is pinned.
func TestPinPrefix(t *testing.T) {
	table, e := newTable(t)
	mine := openSession(t, table)
	defer mine.End()
	e.add("a", 14, 1)
	e.step(3)
	pin := func(r, model, salt string, n int, reserve bool) (*api.Answer, error) {
		return mine.Call(t.Context(), &api.Call{Op: api.Pin, Reservation: r, Model: model, CacheSalt: salt, IDs: ids(n), Rest: reserve})
	}
	for _, x := range []struct {
		model, salt    string
		ids            int
		reserve        bool
		cached, blocks int
	}{
		{ids: 14, cached: 12, blocks: 3},
		{model: "m", ids: 12, cached: 12, blocks: 3},
		{ids: 11, cached: 8, blocks: 2},
		{ids: 3},
		{ids: 30, cached: 12, blocks: 3},
		{ids: 30, reserve: true, cached: 12, blocks: 7},
		{model: "adapter", ids: 14},
		{model: "adapter", ids: 14, reserve: true, blocks: 3},
		{salt: "tenant", ids: 14},
	} {
		r, err := pin("p", x.model, x.salt, x.ids, x.reserve)
		if err != nil || int(r.Cached) != x.cached || len(r.Blocks) != x.blocks || e.stats().Reserved != x.blocks {
			t.Errorf("%+v: %v, %v; %+v", x, r, err, e.stats())
		}
		call(mine, api.Call{Op: api.Release, Reservation: "p"})
	}
	if st := e.stats(); st.UsedBlocks+st.Reserved != 0 {
		t.Errorf("released: %+v", st)
	}

	first, err := pin("first", "", "", 20, true)
	testkit.NoError(t, err)
	second, err := pin("second", "", "", 20, true)
	if err != nil || !slices.Equal(first.Blocks[:3], second.Blocks[:3]) || slices.Equal(first.Blocks[3:], second.Blocks[3:]) {
		t.Errorf("%v and %v: want the same cached blocks and different ones for the rest; %v", first.Blocks, second.Blocks, err)
	}
	if err := call(mine, api.Call{Op: api.Commit, Reservation: "first", Tokens: 18}); err != nil {
		t.Error(err)
	}
	if r, err := pin("first", "", "", 20, false); err != nil || r.Cached != 16 || !slices.Equal(r.Blocks, first.Blocks[:4]) {
		t.Errorf("after a commit of four blocks and a half: %v, %v; committed %v", r, err, first.Blocks)
	}
	mine.End()
	if st := e.stats(); st.UsedBlocks+st.Reserved != 0 {
		t.Errorf("after the session: %+v", st)
	}
}

func TestPrefixCodes(t *testing.T) {
	table, _ := newTable(t)
	mine := openSession(t, table)
	defer mine.End()
	pin := func(r, model string, ids ...uint32) error {
		return call(mine, api.Call{Op: api.Pin, Reservation: r, Model: model, IDs: ids, Rest: true})
	}
	commit := func(r string, tokens uint64) error {
		return call(mine, api.Call{Op: api.Commit, Reservation: r, Tokens: tokens})
	}
	for i, x := range []struct {
		err  error
		want api.Code
	}{
		{pin("", "", 1), api.Invalid},
		{pin(strings.Repeat("r", api.MaxName+1), "", 1), api.Invalid},
		{pin("r", "unknown", 1), api.Invalid},
		{pin("r", "", make([]uint32, 129)...), api.Invalid},
		{pin("r", "", uint32(model.VocabularySize)), api.Invalid},
		{pin("full", "", make([]uint32, 128)...), ""},
		{pin("r", "", make([]uint32, 4)...), api.Full},
		{pin("full", "", 1), api.InUse},
		{call(mine, api.Call{Op: api.Reserve, Reservation: "full", Tokens: 1}), api.Invalid},
		{call(mine, api.Call{Op: api.Fill, Reservation: "full", IDs: []uint32{1}}), api.Invalid},
		{commit("r", 0), api.NotFound},
		{commit("full", 129), api.Invalid},
		{commit("full", 1<<63), api.Invalid},
		{commit("full", 128), ""},
		{commit("full", 128), api.NotFound},
	} {
		if got := code(x.err); got != x.want {
			t.Errorf("case %d: %v, want %v", i, x.err, x.want)
		}
	}
	table.cfg.Root = nil
	if err := pin("r", "", 1); code(err) != api.Unsupported {
		t.Error(err)
	}
}

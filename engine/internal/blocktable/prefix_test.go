package blocktable

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
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
	table, e := newTable(t, "d")
	name, leave := openSession(t, table)
	defer leave()
	e.add("a", 14, 1)
	e.step(3)
	pin := func(r, model, salt string, n int, reserve bool) (*api.PinPrefixReply, error) {
		return table.PinPrefix(t.Context(), &api.PinPrefixRequest{Session: name, Reservation: r, Model: model, CacheSalt: salt, Ids: ids(n), Reserve: reserve})
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
		table.Release(t.Context(), &api.ReleaseRequest{Reservation: "p"})
	}
	if st := e.stats(); st.UsedBlocks+st.Reserved != 0 {
		t.Errorf("released: %+v", st)
	}

	first, err := pin("first", "", "", 20, true)
	if err != nil {
		t.Fatal(err)
	}
	second, err := pin("second", "", "", 20, true)
	if err != nil || !slices.Equal(first.Blocks[:3], second.Blocks[:3]) || slices.Equal(first.Blocks[3:], second.Blocks[3:]) {
		t.Errorf("%v and %v: want the same cached blocks and different ones for the rest; %v", first.Blocks, second.Blocks, err)
	}
	if _, err := table.CommitPrefix(t.Context(), &api.CommitPrefixRequest{Reservation: "first", Tokens: 18}); err != nil {
		t.Error(err)
	}
	if r, err := pin("first", "", "", 20, false); err != nil || r.Cached != 16 || !slices.Equal(r.Blocks, first.Blocks[:4]) {
		t.Errorf("after a commit of four blocks and a half: %v, %v; committed %v", r, err, first.Blocks)
	}
	leave()
	if st := e.stats(); st.UsedBlocks+st.Reserved != 0 {
		t.Errorf("after the session: %+v", st)
	}
}

func TestPrefixCodes(t *testing.T) {
	table, _ := newTable(t, "d")
	name, leave := openSession(t, table)
	defer leave()
	pin := func(session, r, model string, ids ...uint32) error {
		_, err := table.PinPrefix(t.Context(), &api.PinPrefixRequest{Session: session, Reservation: r, Model: model, Ids: ids, Reserve: true})
		return err
	}
	commit := func(r string, tokens uint64) error {
		_, err := table.CommitPrefix(t.Context(), &api.CommitPrefixRequest{Reservation: r, Tokens: tokens})
		return err
	}
	for i, x := range []struct {
		err  error
		want codes.Code
	}{
		{pin("zz", "r", "", 1, 2, 3, 4), codes.NotFound},
		{pin(name, "", "", 1), codes.InvalidArgument},
		{pin(name, strings.Repeat("r", MaxName+1), "", 1), codes.InvalidArgument},
		{pin(name, "r", "unknown", 1), codes.InvalidArgument},
		{pin(name, "r", "", make([]uint32, 129)...), codes.InvalidArgument},
		{pin(name, "r", "", uint32(model.VocabularySize)), codes.InvalidArgument},
		{pin(name, "full", "", make([]uint32, 128)...), codes.OK},
		{pin(name, "r", "", make([]uint32, 4)...), codes.ResourceExhausted},
		{pin(name, "full", "", 1), codes.AlreadyExists},
		{second(table.Reserve(t.Context(), &api.ReserveRequest{Session: name, Reservation: "full", Tokens: 1})), codes.InvalidArgument},
		{second(table.MarkFilled(t.Context(), &api.MarkFilledRequest{Reservation: "full", Ids: []uint32{1}})), codes.InvalidArgument},
		{commit("r", 0), codes.NotFound},
		{commit("full", 129), codes.InvalidArgument},
		{commit("full", 1<<63), codes.InvalidArgument},
		{commit("full", 128), codes.OK},
		{commit("full", 128), codes.NotFound},
	} {
		if got := status.Code(x.err); got != x.want {
			t.Errorf("case %d: %v, want %v", i, x.err, x.want)
		}
	}
	table.cfg.Root = nil
	if err := pin(name, "r", "", 1); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

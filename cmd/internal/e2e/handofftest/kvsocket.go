package handofftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// migrator is the other end of an engine's kv.sock, of which the test writes each frame.
type migrator struct {
	t       *testing.T
	conn    *net.UnixConn
	welcome api.Welcome
	memory  []byte
}

// dial connects to the socket in a directory and says hello.
func dial(t *testing.T, dir string, hello api.Hello) *migrator {
	t.Helper()
	m := &migrator{t: t, conn: testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, api.Socket), Net: "unix"}))}
	t.Cleanup(func() { m.conn.Close() })
	body := testkit.Must(json.Marshal(api.Frame{Hello: &hello})) // unlike Append it validates nothing
	m.write(append([]byte{0, 0, 0, byte(len(body))}, body...))
	return m
}

// connect is dial for a hello that is accepted.
func connect(t *testing.T, dir, replica string, incarnation uint64) *migrator {
	t.Helper()
	m := dial(t, dir, api.Hello{Version: api.Version, Replica: replica, Incarnation: incarnation})
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	m.conn.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	_, size, _, _, err := m.conn.ReadMsgUnix(first, rights)
	testkit.NoError(t, err)
	f, err := api.ReadFrame(io.MultiReader(bytes.NewReader(first), m.conn))
	testkit.NoError(t, err)
	if m.welcome = *f.Welcome; len(m.welcome.Handles) != 1 || len(m.welcome.Regions) != 1 {
		t.Fatalf("%+v: want one handle with one region", m.welcome)
	}
	fds := testkit.Must(unix.ParseUnixRights(&testkit.Must(unix.ParseSocketControlMessage(rights[:size]))[0]))
	defer unix.Close(fds[0])
	if err := unix.Ftruncate(fds[0], 0); err == nil {
		t.Error("a migrator can take the staging memory away")
	}
	m.memory = testkit.Must(unix.Mmap(fds[0], 0, m.welcome.Blocks*int(m.welcome.Regions[0].Stride), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	memory := m.memory
	t.Cleanup(func() { unix.Munmap(memory) })
	return m
}

func (m *migrator) write(b []byte) {
	m.t.Helper()
	testkit.Must(m.conn.Write(b))
}

func (m *migrator) send(f api.Frame) { m.t.Helper(); m.write(testkit.Must(f.Append(nil))) }

// read reads the engine's next frame.
func (m *migrator) read() api.Frame {
	m.t.Helper()
	m.conn.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	f, err := api.ReadFrame(m.conn)
	testkit.NoError(m.t, err)
	return f
}

// requireClosed waits until the engine closes the connection.
func (m *migrator) requireClosed(why string) {
	m.t.Helper()
	m.conn.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	if f, err := api.ReadFrame(m.conn); err == nil || strings.Contains(err.Error(), "timeout") {
		m.t.Errorf("%s: the engine sends %s, %v", why, f.Name(), err)
	}
}

func (m *migrator) slot(n uint32) []byte {
	size := uint32(m.welcome.Regions[0].Stride)
	return m.memory[n*size : (n+1)*size]
}

// toKeep are the fields by which an engine is asked to hand the KV of a prompt over.
var toKeep = map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true}}

// keep asks the engine to hand the KV of ids over, and returns the answer's kv_transfer_params.
func (e endpoint) keep(ids []uint32, more map[string]any) gjson.Result {
	e.t.Helper()
	fields := maps.Clone(toKeep)
	maps.Copy(fields, more)
	_, answer := e.complete(ids, 1, fields)
	return answer.Get("kv_transfer_params")
}

// socketPair is two engines whose sockets the test serves.
type socketPair struct {
	t         *testing.T
	engines   [2]endpoint
	migrators [2]*migrator
	block     int
	rng       *rand.Rand
}

// ids returns n ids that were not asked for before.
func (p *socketPair) ids(n int) []uint32 { return randomIDs(p.rng, n) }

// offer hands the KV of ids over from the first engine, and checks what it says.
func (p *socketPair) offer(ids []uint32, more map[string]any) (api.Offer, map[string]any) {
	p.t.Helper()
	params := p.engines[0].keep(ids, more)
	o := p.migrators[0].read().Offer
	blocks := (len(ids) + p.block - 1) / p.block
	if o == nil || o.Error != "" || len(o.Blocks) != blocks {
		p.t.Fatalf("%d ids: the offer is %+v, want %d slots", len(ids), o, blocks)
	}
	if params.Get("kv_connector").Str != api.Connector || params.Get("cascade_holder").Str != "r0" || params.Get("cascade_handle").Str != o.Handle ||
		params.Get("remote_num_tokens").Int() != int64(len(ids)) || !params.Get("do_remote_prefill").Bool() {
		p.t.Errorf("%d ids, offer %s: the parameters are %s", len(ids), o.Handle, params.Raw)
	}
	for i, slot := range o.Blocks {
		if got := crc32.ChecksumIEEE(p.migrators[0].slot(slot)); got != o.Sums[i] {
			p.t.Errorf("slot %d has the checksum %x, not %x", slot, got, o.Sums[i])
		}
	}
	return *o, params.Value().(map[string]any)
}

// fetch continues ids at the second engine with parameters, and has serve answer what it wants to
// fetch; nil: it must want nothing. It checks the ids, and returns what the engine got.
func (p *socketPair) fetch(why string, ids []uint32, params map[string]any, serve func(api.Fetch)) Sources {
	p.t.Helper()
	const tokens = 20
	before := p.engines[1].sources()
	done := make(chan []uint32, 1)
	go func() {
		got, _, err := p.engines[1].tryComplete(p.t.Context(), ids, tokens, map[string]any{"kv_transfer_params": params})
		if err != nil {
			p.t.Errorf("%s: %v", why, err)
		}
		done <- got
	}()
	if serve != nil {
		f := p.migrators[1].read().Fetch
		if f == nil {
			p.t.Fatalf("%s: no fetch", why)
		}
		serve(*f)
	}
	got := <-done
	if want, _ := p.engines[0].complete(ids, tokens, nil); !slices.Equal(got, want) || len(got) != tokens {
		p.t.Errorf("%s: %v, want %v", why, got, want)
	}
	return testkit.WaitForValue(p.t, "the engine's counters", func() Sources { return p.engines[1].sources().Sub(before) },
		func(s Sources) bool { return s.Computed+s.Cached+s.Fetched >= float64(len(ids)) })
}

// deliver copies what is wanted from the slots of an offer.
func (p *socketPair) deliver(o api.Offer) func(api.Fetch) {
	return func(f api.Fetch) {
		if f.Handle != o.Handle || f.Digest != o.Digest || f.Holder != "r0" || f.First+len(f.Blocks) != len(o.Blocks) {
			p.t.Errorf("fetch %+v of offer %+v", f, o)
		}
		for i, slot := range f.Blocks {
			copy(p.migrators[1].slot(slot), p.migrators[0].slot(o.Blocks[f.First+i]))
		}
		p.migrators[1].send(api.Frame{Fetched: &api.Fetched{ID: f.ID}})
	}
}

// PlayKVSocket speaks with two engines as their migrators do (engine/api), frame by frame: what they offer, what
// they fetch, and that they compute, rightly, what they do not get. The engines are base URLs, with blocks of so many
// tokens and sockets in directories to which nothing else connects.
func PlayKVSocket(t *testing.T, model string, engines, dirs [2]string, block int) {
	t.Helper()
	p := &socketPair{t: t, block: block, rng: rand.New(rand.NewPCG(5, 6))}
	incarnation := uint64(10)
	for i := range engines {
		p.engines[i] = endpoint{t, http.DefaultClient, model, engines[i]}
		if params := p.engines[i].keep(p.ids(5), nil); params.Type != gjson.Null {
			t.Errorf("without a migrator the parameters are %s", params.Raw)
		}
		p.migrators[i] = connect(t, dirs[i], fmt.Sprint("r", i), incarnation)
	}
	w := p.migrators[0].welcome
	if w.Fingerprint != p.migrators[1].welcome.Fingerprint || w.Regions[0] != p.migrators[1].welcome.Regions[0] {
		t.Errorf("equal engines say %+v and %+v", w, p.migrators[1].welcome)
	}
	reconnect := func(i int) {
		incarnation++
		p.migrators[i] = connect(t, dirs[i], fmt.Sprint("r", i), incarnation)
	}

	for _, n := range []int{2, block - 1, block, block + 1, 3*block + 5} {
		ids := p.ids(n)
		o, params := p.offer(ids, nil)
		if got := p.fetch(fmt.Sprint(n, " ids"), ids, params, p.deliver(o)); got.Computed != 0 || got.Fetched != float64(n) {
			t.Errorf("%d ids: the engine got %+v", n, got)
		}
		p.migrators[0].send(api.Frame{Released: &api.Released{Handle: o.Handle}})
	}
	p.playDigests()

	// Blocks that the engine has in its own cache are not fetched.
	ids := p.ids(3 * block)
	o, params := p.offer(ids, nil)
	p.fetch("a prefix", ids, params, p.deliver(o))
	ids = append(ids, p.ids(block)...)
	o, params = p.offer(ids, nil)
	first := -1
	got := p.fetch("the rest", ids, params, func(f api.Fetch) { first = f.First; p.deliver(o)(f) })
	if first != 3 || got.Computed != 0 || got.Fetched != float64(block) {
		t.Errorf("the first block is %d, the engine got %+v", first, got)
	}

	// What does not come is computed.
	computed := func(why string, params func(map[string]any), serve func(api.Fetch)) {
		t.Helper()
		ids := p.ids(3*block + 5)
		_, offered := p.offer(ids, nil)
		if params != nil {
			params(offered)
		}
		if got := p.fetch(why, ids, offered, serve); got.Computed != float64(len(ids)) {
			t.Errorf("%s: the engine got %+v", why, got)
		}
	}
	computed("an error", nil, func(f api.Fetch) {
		copy(p.migrators[1].slot(f.Blocks[0]), "wrong")
		p.migrators[1].send(api.Frame{Fetched: &api.Fetched{ID: f.ID, Error: "the lease has ended"}})
	})
	computed("the migrator ends", nil, func(f api.Fetch) { p.migrators[1].conn.Close() })
	computed("no migrator", nil, nil)
	reconnect(1)
	computed("the KV of more ids", func(p map[string]any) { p["remote_num_tokens"] = p["remote_num_tokens"].(float64) + 1 }, nil)
	computed("the KV of less ids", func(p map[string]any) { p["remote_num_tokens"] = p["remote_num_tokens"].(float64) - 1 }, nil)
	computed("a handle that is none", func(p map[string]any) { p["cascade_handle"] = "x" }, nil)
	computed("a holder whose name is too long", func(p map[string]any) { p["cascade_holder"] = strings.Repeat("r", 257) }, nil)
	computed("another connector", func(p map[string]any) { delete(p, "cascade_handle") }, nil)

	// Frames that are wrong end the connection, and nothing else.
	for why, b := range map[string][]byte{
		"a long frame": {0xff, 0xff, 0xff, 0xff}, "no JSON": {0, 0, 0, 1, 'x'}, "no object": {0, 0, 0, 1, '1'}, "an unknown frame": append([]byte{0, 0, 0, 7}, `{"x":1}`...),
		"a fetch that was not asked for": testkit.Must(api.Frame{Fetched: &api.Fetched{ID: 1 << 40}}.Append(nil)),
	} {
		p.migrators[1].write(b)
		p.migrators[1].requireClosed(why)
		reconnect(1)
	}
	dial(t, dirs[1], api.Hello{Version: 1, Replica: "r1", Incarnation: 1 << 40}).requireClosed("another version")
	dial(t, dirs[1], api.Hello{Version: api.Version, Replica: "r1", Incarnation: incarnation - 1}).requireClosed("an earlier migrator")
	old := p.migrators[1]
	reconnect(1)
	old.requireClosed("the migrator before a later one")
	ids = p.ids(100)
	o, params = p.offer(ids, nil)
	if got := p.fetch("in the end", ids, params, p.deliver(o)); got.Computed != 0 {
		t.Errorf("in the end the engine got %+v", got)
	}
}

// playDigests checks that the digest says what the KV depends on.
func (p *socketPair) playDigests() {
	p.t.Helper()
	ids := p.ids(2*p.block + 3)
	plain, _ := p.offer(ids, nil)
	again, _ := p.offer(ids, nil)
	salted, _ := p.offer(ids, map[string]any{"cache_salt": "x"})
	other := append(slices.Clone(ids[:len(ids)-1]), ids[len(ids)-1]+1)
	last, _ := p.offer(other, nil)
	if plain.Digest != again.Digest || plain.Handle == again.Handle || slices.Equal(plain.Blocks, again.Blocks) {
		p.t.Errorf("twice the same ids: %+v and %+v", plain, again)
	}
	if salted.Digest == plain.Digest || last.Digest == plain.Digest {
		p.t.Errorf("the digest of other KV is the same: %s, %s, %s", plain.Digest, salted.Digest, last.Digest)
	}
	if plain.Sums[0] != again.Sums[0] || plain.Sums[0] == plain.Sums[1] {
		p.t.Errorf("the checksums are %v and %v", plain.Sums, again.Sums)
	}
	want := api.Digest(p.migrators[0].welcome.Fingerprint, "", "", ids)
	if plain.Digest != want {
		p.t.Errorf("the digest is %s, want %s", plain.Digest, want)
	}
}

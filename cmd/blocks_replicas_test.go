package cmd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

var vocabulary = sync.OnceValues(model.NewVocabulary)

// replica is a real emulator with a real client of its block table.
type replica struct {
	url    string
	blocks *kvport.Client
}

// startReplicas starts n replicas that can continue each other's requests, with the given context
// length in tokens and the given speed.
func startReplicas(t testing.TB, n, context int, speed float64) []*replica {
	t.Helper()
	v, err := vocabulary()
	testkit.NoError(t, err)
	out := make([]*replica, n)
	for i := range out {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		client, err := kvport.New(kvport.Config{Self: "r", Dir: dir})
		testkit.NoError(t, err)
		out[i] = &replica{blocks: client}
		engine, err := emulator.New(emulator.Config{
			Model: "m", Vocabulary: v, Speed: speed, Blocks: dir,
			// Different numbers of blocks, so that a block is never at the same place in two replicas.
			KVTokens: policies.Tokens(2*context + 64*i), Context: policies.Tokens(context), MaxBatchedTokens: context,
			Profile: cost.Profile{Name: "p", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-4, D2: 1e-6, KVBytesPerToken: 131072, KVTokens: 8192, MaxBatch: 16},
		})
		testkit.NoError(t, err)
		testkit.Run(t, client.Run)
		server := httptest.NewServer(engine.Handler())
		out[i].url = server.URL
		stop := testkit.Run(t, engine.Run)
		t.Cleanup(func() {
			stop()
			server.CloseClientConnections()
			server.Close()
		})
		testkit.WaitFor(t, "the memory", func() bool { _, ok := client.Memory(); return ok })
	}
	return out
}

// leg is one streaming request at one replica.
type leg struct {
	name  string
	body  *bufio.Scanner
	close func()

	text    strings.Builder
	ids     []uint32
	ended   bool // the end marker was read
	refusal string
}

// open sends a completion. It does not read the stream.
func (s *replica) open(t testing.TB, name, body string) *leg {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, "POST", s.url+"/v1/completions", strings.NewReader(body))
	testkit.NoError(t, err)
	q.Header.Set("X-Cascade-Leg", name)
	r, err := http.DefaultTransport.RoundTrip(q)
	testkit.NoError(t, err)
	l := &leg{name: name, body: bufio.NewScanner(r.Body), close: func() { cancel(); r.Body.Close() }}
	l.body.Buffer(nil, 4<<20) // the first event has the ids of the prompt
	if r.StatusCode != http.StatusOK {
		l.body.Scan()
		l.refusal = fmt.Sprint(r.StatusCode, " ", l.body.Text())
	}
	return l
}

// adopt continues a migrated request at the target for so many tokens; its prompt had three.
func (s *replica) adopt(t testing.TB, reservation string, tokens int) *leg {
	t.Helper()
	return s.open(t, reservation, requestBody(`[]`, tokens, `,"kv_transfer_params":{"cascade_reservation":"`+reservation+`","cascade_prompt":3}`))
}

// read reads tokens until there are n in all, or until the end of the stream; false at the
// end.
func (l *leg) read(t testing.TB, n int) bool {
	t.Helper()
	for len(l.ids) < n {
		if !l.body.Scan() {
			return false
		}
		data, ok := strings.CutPrefix(l.body.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			l.ended = true
			return false
		}
		var c struct {
			Choices []struct {
				Text     string
				Delta    struct{ Content string }
				TokenIDs []uint32 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, x := range c.Choices {
			l.text.WriteString(x.Text + x.Delta.Content)
			l.ids = append(l.ids, x.TokenIDs...)
		}
	}
	return true
}

// toEnd is more tokens than any stream has.
const toEnd = 1 << 30

// requestBody returns the body of a completion.
func requestBody(prompt string, tokens int, more string) string {
	return fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true%s}`, prompt, tokens, more)
}

// copyBlocks copies blocks from one engine's memory into another's, as a transport does.
func copyBlocks(t testing.TB, from, to *replica, src, dst []uint32) {
	t.Helper()
	a, err := transport.HoldHostMemory(from.blocks)
	testkit.NoError(t, err)
	defer a.Release()
	b, err := transport.HoldHostMemory(to.blocks)
	testkit.NoError(t, err)
	defer b.Release()
	testkit.NoError(t, a.CheckCompatible(b.Layout))
	for i := range src {
		for r := range a.Regions {
			copy(b.RegionBytes(dst[i], r), a.RegionBytes(src[i], r))
		}
	}
}

// migration is a live migration in progress.
type migration struct {
	from, to    *replica
	leg         string
	reservation string
	dst         []uint32
	generation  uint64
	full        int // full blocks copied so far
}

// migrate copies the full blocks that a request has so far, while it runs.
func migrate(t testing.TB, from, to *replica, leg, reservation string) *migration {
	t.Helper()
	m := &migration{from: from, to: to, leg: leg, reservation: reservation}
	m.round(t)
	return m
}

// round copies the blocks that have become full since the previous round.
func (m *migration) round(t testing.TB) {
	t.Helper()
	d, _ := m.to.blocks.Description()
	from := m.full * d.BlockTokens
	table, err := m.from.blocks.Table(t.Context(), m.leg, from)
	testkit.NoError(t, err)
	m.generation = table.Generation
	full := table.Computed / d.BlockTokens
	n := full - m.full
	m.dst, err = m.to.blocks.Reserve(t.Context(), m.reservation, table.Length+640)
	testkit.NoError(t, err)
	copyBlocks(t, m.from, m.to, table.Blocks[:n], m.dst[m.full:full])
	testkit.NoError(t, m.to.blocks.MarkFilled(t.Context(), m.reservation, from, table.IDs[:n*d.BlockTokens], full*d.BlockTokens))
	m.full = full
}

// freeze stops the request at the source.
func (m *migration) freeze(t testing.TB) kvport.Table {
	t.Helper()
	d, _ := m.to.blocks.Description()
	last, err := m.from.blocks.Freeze(t.Context(), m.leg, m.full*d.BlockTokens)
	testkit.NoError(t, err)
	if last.Generation != m.generation || last.Computed != last.Length-1 {
		t.Fatalf("frozen: %+v, generation %d before", last, m.generation)
	}
	return last
}

// finish copies the remaining blocks of the frozen request, and returns its length.
func (m *migration) finish(t testing.TB, last kvport.Table) (length int) {
	t.Helper()
	d, _ := m.to.blocks.Description()
	if last.Length > len(m.dst)*d.BlockTokens {
		var err error
		m.dst, err = m.to.blocks.Reserve(t.Context(), m.reservation, last.Length)
		testkit.NoError(t, err)
	}
	copyBlocks(t, m.from, m.to, last.Blocks, m.dst[m.full:m.full+len(last.Blocks)])
	testkit.NoError(t, m.to.blocks.MarkFilled(t.Context(), m.reservation, m.full*d.BlockTokens, last.IDs, last.Computed))
	return last.Length
}

// unmigrated runs a request to its end on one replica, to compare a migrated request with. It can
// be called afterwards, when the length of the migrated one is known.
func unmigrated(t testing.TB, s *replica, prompt string, tokens int) *leg {
	t.Helper()
	l := s.open(t, "unmigrated", requestBody(prompt, tokens, ""))
	defer l.close()
	if l.read(t, toEnd); len(l.ids) != tokens || !l.ended {
		t.Fatalf("%d tokens of %d: %q", len(l.ids), tokens, l.refusal)
	}
	return l
}

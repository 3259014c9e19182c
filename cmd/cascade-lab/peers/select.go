package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	extism "github.com/extism/go-sdk"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// receivers is the number of bids to choose from.
const receivers = 16

// leastLoad is bidask.LeastLoad in Rego.
const leastLoad = `package bids

least := min([b.load | some b in input])

first := min([b.start | some b in input; b.load == least])

winner := min([i | some i, b in input; b.load == least; b.start == first])
`

// choice is one call: which of 16 receivers gets the request. A peer's input is prepared
// beforehand if a program that used the peer would have it anyway: OPA's evaluator gets parsed
// input. The input of this host and of Extism is encoded within the call.
type choice struct {
	bids   []policies.Bid
	parsed ast.Value
	plain  any
}

func choices(r *rand.Rand) ([]choice, error) {
	all := make([]choice, 64)
	for n := range all {
		c := &all[n]
		var list []any
		for i := range receivers {
			b := policies.Bid{From: policies.ReplicaID(fmt.Sprintf("replica-%d", i)), Load: policies.Tokens(r.IntN(12)), Start: policies.Micros(r.IntN(4))}
			c.bids = append(c.bids, b)
			list = append(list, map[string]any{"load": int64(b.Load), "start": int64(b.Start)})
		}
		var err error
		if c.parsed, err = ast.InterfaceToValue(list); err != nil {
			return nil, err
		}
		c.plain = list
	}
	return all, nil
}

// choosers returns the peers, the native policy first.
func choosers(ctx context.Context, b *builder, all []choice) ([]peer, error) {
	least := bidask.LeastLoad{}
	peers := []peer{{"native Go", func(n int) (string, error) { return index(least.Select(all[n].bids)), nil }}}
	add := func(name string, ask func(c *choice) (int, error)) {
		peers = append(peers, peer{name, func(n int) (string, error) {
			i, err := ask(&all[n])
			return index(i), err
		}})
	}
	for _, ours := range []struct {
		name string
		code func() ([]byte, error)
	}{
		{"our host, guest in C", func() ([]byte, error) { return b.c("cascade.c") }},
		{"our host, guest in Go", func() ([]byte, error) { return b.golang("../../../wasm/plugins/bid-least-load.go") }},
	} {
		code, err := ours.code()
		if err != nil {
			return nil, err
		}
		i, err := b.instance(ctx, code)
		if err != nil {
			return nil, err
		}
		add(ours.name, func(c *choice) (int, error) { return i.Select(abi.Call{}, c.bids) })
	}
	inC, err := b.c("extism.c")
	if err != nil {
		return nil, err
	}
	inGo, err := b.golang("plugin/main_wasip1.go")
	if err != nil {
		return nil, err
	}
	for _, e := range []struct {
		name    string
		code    []byte
		timeout uint64 // ms
	}{{"Extism, plugin in C", inC, 0}, {"Extism, plugin in C, with a timeout", inC, 1000}, {"Extism, plugin in Go", inGo, 0}} {
		p, err := extism.NewPlugin(ctx, extism.Manifest{Wasm: []extism.Wasm{extism.WasmData{Data: e.code}}, Timeout: e.timeout},
			extism.PluginConfig{EnableWasi: true}, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		b.later(func() error { return p.Close(ctx) })
		buf := make([]byte, 0, 16*receivers)
		add(e.name, func(c *choice) (int, error) {
			buf = buf[:0]
			for i := range c.bids {
				buf = binary.LittleEndian.AppendUint64(buf, uint64(c.bids[i].Load))
				buf = binary.LittleEndian.AppendUint64(buf, uint64(c.bids[i].Start))
			}
			_, out, err := p.Call("choose", buf)
			if err != nil || len(out) != 8 {
				return -1, fmt.Errorf("%d bytes, %w", len(out), err)
			}
			return int(int64(binary.LittleEndian.Uint64(out))), nil
		})
	}
	for _, o := range []struct{ name, target string }{{"OPA, its evaluator (parsed input)", ""}, {"OPA, its own wasm target", "wasm"}} {
		q, err := rego.New(rego.Query("data.bids.winner"), rego.Module("bids.rego", leastLoad), rego.Target(o.target)).PrepareForEval(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		add(o.name, func(c *choice) (int, error) {
			input := rego.EvalParsedInput(c.parsed)
			if o.target != "" {
				input = rego.EvalInput(c.plain)
			}
			r, err := q.Eval(ctx, input)
			if err != nil || len(r) != 1 {
				return -1, fmt.Errorf("%d results, %w", len(r), err)
			}
			i, err := r[0].Expressions[0].Value.(json.Number).Int64()
			return int(i), err
		})
	}
	return peers, nil
}

var indices [receivers + 1]string

func init() {
	for i := range indices {
		indices[i] = fmt.Sprint(i - 1)
	}
}

// index formats a number without allocating.
func index(i int) string {
	if i < -1 || i >= receivers {
		return "none of them"
	}
	return indices[i+1]
}

// instance makes an instance with a fleet's limits of fuel and memory, and with a watchdog. The
// wall limit is practically infinite: calls must not time out because the host is busy.
func (b *builder) instance(ctx context.Context, code []byte) (*host.Instance, error) {
	c := host.Config{Watchdog: b.watch}
	for k := range c.Limits {
		c.Limits[k].Wall = time.Hour
	}
	m, err := host.Load(ctx, c, code)
	if err != nil {
		return nil, err
	}
	i, err := m.Instantiate()
	if err != nil {
		return nil, err
	}
	b.later(func() error {
		if err := i.Close(); err != nil {
			return err
		}
		return m.Close()
	})
	return i, nil
}

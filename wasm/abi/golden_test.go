package abi

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// A vector is a frame and an answer to it, as in testdata. The tables below have the offsets
// of its fields; they come from the specification, not from the package's code.
type vector struct {
	name, about string
	kind        Kind
	put         func(arena []byte) (int, error)
	answer      func(frame []byte) uint64
}

var goldenCall = Call{ID: 0x0102030405060708, Now: 1_700_000_000_000_000, Seed: 42, State: []byte("state"), Room: 16}

func goldenWorkload() policies.Workload {
	f := policies.NewFlow([]policies.Tokens{0, 1024, 16_384})
	for i := range f.Edges {
		x := float64(i + 1)
		f.Arrivals[i], f.Tokens[i], f.Reads[i], f.Prefill[i], f.Prefill2[i], f.Weight[i], f.Crossings[i] = 10/x, 900/x, 1e6*x, 5000/x, 2.5e7, 0.25/x, x-1
	}
	f.Seen = 123_456
	return policies.Workload{
		Flow: f, Snapshot: []policies.Batch{{N: 10, SumI: 3000, SumI2: 1e6, SumL: 5000}, {N: 4, SumI: 9000, SumI2: 2.2e7, SumL: 11_000}, {}},
		QoE:      policies.QoE{D0: 0.009, D1: 0.00012, D2: 1e-7, D3: 5e-13, D4: 4e-8},
		Cost:     policies.Cost{D0: 0.008, D1: 0.00011, D2: 2e-5, D3: 1e-10, D4: 3e-8, Kappa: 0.5},
		Capacity: policies.Capacity{KV: 400_000, Batch: 256, TransferRate: 12.5}, Replicas: 8,
		Transfer: policies.Transfer{Base: 0.01, PerToken: 1e-6}, Limits: policies.Limits{Stages: 4, Iteration: 0.1, Pooling: 1.5, Utilisation: 0.9},
	}
}

var goldenChange = Change{
	Now: policies.OneStagePlan("llama", []policies.ReplicaID{"r0", "r1", "r2"}),
	Next: policies.Plan{Model: "llama", Epoch: 8, Stages: []policies.Stage{
		{Low: 0, High: 4096, Replicas: []policies.ReplicaID{"r0", "r2"}}, {Low: 4096, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1"}}}},
}

var goldenArrival = policies.Arrival{
	Request: policies.Request{ID: "front-1/77", Model: "llama", Input: 3000, Cached: 1024, MaxOutput: 512, Estimated: true, Features: policies.Seed | policies.Stop},
	Own:     policies.Candidate{ID: "r0", Low: 0, High: 2048, Waiting: 9000, Load: 50_000, Prefix: 0, Draining: true, Running: 12},
	Peers: []policies.Candidate{{ID: "r1", Low: 2048, High: policies.Unbounded, Waiting: 100, Load: 80_000, Prefix: 1024},
		{ID: "replica-2", Low: 2048, High: policies.Unbounded, Waiting: 0, Load: 10_000, Prefix: 0, Running: 3, Price: 12_500_000}},
}

var vectors = []vector{
	{"configure", "a configuration of eleven bytes", Configure,
		func(a []byte) (int, error) { return EncodeConfigureCall(a, goldenCall, []byte(`percent: 25`)) },
		func([]byte) uint64 { return Result(OK, 0) }},
	{"partition", "three buckets with a snapshot; two stages, proven best", Partition,
		func(a []byte) (int, error) { return EncodePartitionCall(a, goldenCall, goldenWorkload()) },
		func(f []byte) uint64 {
			return EncodePartitionResult(f, policies.Partition{Cuts: []policies.Tokens{1024}, Counts: []int{5, 3}, Cost: 1.25, OneStage: math.Inf(1), Iterations: []float64{0.012, 0.034}, Exact: true}, true)
		}},
	{"partition-infeasible", "one bucket without a snapshot; no partition", Partition,
		func(a []byte) (int, error) {
			return EncodePartitionCall(a, Call{}, policies.Workload{Flow: policies.NewFlow([]policies.Tokens{0}), Replicas: 1})
		},
		func(f []byte) uint64 { return EncodePartitionResult(f, policies.Partition{}, false) }},
	{"refine", "two own requests, one of the next stage, an open end; the boundary moves", Refine,
		func(a []byte) (int, error) {
			return EncodeRefineCall(a, goldenCall, policies.BoundaryView{Boundary: 2048, Low: 0, High: policies.Unbounded, Peers: 4, Successors: 2, QoE: goldenWorkload().QoE,
				Local: []policies.Sequence{{Input: 100, Length: 150}, {Input: 1000, Length: 2000}}, Next: []policies.Sequence{{Input: 4000, Length: 4100}}})
		},
		func(f []byte) uint64 { return EncodeRefineResult(f, 1900) }},
	{"bid-quote", "a growing request; a bid", Quote,
		func(a []byte) (int, error) {
			return EncodeQuoteCall(a, goldenCall, QuoteArgs{policies.Occupancy{Capacity: 400_000, Held: 120_000, Promised: 3000, Incoming: 5000, Throughput: 2_000_000},
				policies.Migration{Request: "front-1/77", Length: 4097, Cause: policies.Growth}})
		},
		func(f []byte) uint64 { return EncodeQuoteResult(f, policies.Bid{Load: 128_000, Start: 2500}, true) }},
	{"bid-quote-none", "a draining replica; no bid", Quote,
		func(a []byte) (int, error) {
			return EncodeQuoteCall(a, Call{}, QuoteArgs{policies.Occupancy{Draining: true}, policies.Migration{Length: 1, Cause: policies.Spill}})
		},
		func(f []byte) uint64 { return EncodeQuoteResult(f, policies.Bid{}, false) }},
	{"bid-select", "three bids; the second wins", Select,
		func(a []byte) (int, error) {
			return EncodeSelectCall(a, goldenCall, []policies.Bid{{From: "r1", Load: 90_000, Start: 0}, {From: "replica-2", Load: 10_000, Start: 1500}, {From: "r3", Load: 10_000, Start: 1501}})
		},
		func([]byte) uint64 { return EncodeSelectResult(1) }},
	{"bid-select-none", "no bids, no state; none taken", Select,
		func(a []byte) (int, error) { return EncodeSelectCall(a, Call{}, nil) },
		func([]byte) uint64 { return EncodeSelectResult(-1) }},
	{"outlier", "an outlier", Outlier,
		func(a []byte) (int, error) { return EncodeOutlierCall(a, goldenCall, 150_000, 100_000) },
		func(f []byte) uint64 { return EncodeOutlierResult(f, 50_000) }},
	{"place", "a draining front with two peers; the second gets the request", Place,
		func(a []byte) (int, error) { return EncodePlaceCall(a, goldenCall, goldenArrival) },
		func([]byte) uint64 { return EncodePlaceResult(goldenArrival, "replica-2") }},
	{"guard", "one stage in force, two proposed; allowed", Guard,
		func(a []byte) (int, error) { return EncodeGuardCall(a, goldenCall, goldenChange) },
		func(f []byte) uint64 { return EncodeGuardResult(f, Denial{}, false) }},
	{"guard-denied", "a first plan; denied for its first stage", Guard,
		func(a []byte) (int, error) { return EncodeGuardCall(a, Call{}, Change{Next: goldenChange.Next}) },
		func(f []byte) uint64 {
			return EncodeGuardResult(f, Denial{Code: 3, Stage: 0, Detail: "too wide"}, true)
		}},
}

// The tables: lines of "offset type name".
const headerTable = `0 u32 magic
4 u16 hdr_len
6 u16 kind
8 u32 flags
12 u32 reserved
16 u32 arg_off
20 u32 arg_len
24 u32 rec_off
28 u32 rec_count
32 u32 rec_stride
36 u32 aux_off
40 u32 aux_len
44 u32 state_off
48 u32 state_len
52 u32 state_cap
56 u32 out_off
60 u32 out_cap
64 u64 call
72 i64 now
80 u64 seed`

const costTable = "%d f64 d0,%d f64 d1,%d f64 d2,%d f64 d3,%d f64 d4,%d f64 kappa"

// qoeLines lists the coefficients of a QoE model, with a prefix to their names.
func qoeLines(at int, prefix string) string {
	var lines []string
	for i := range 5 {
		lines = append(lines, fmt.Sprintf("%d f64 %sd%d", at+8*i, prefix, i))
	}
	return strings.Join(lines, ",")
}

func costLines(at int) string {
	return fmt.Sprintf(costTable, at, at+8, at+16, at+24, at+32, at+40)
}

var argTables = map[Kind]string{
	Partition: "0 i64 kv,8 i64 batch,16 f64 transfer_rate,24 i64 replicas," + costLines(32) + ",80 f64 transfer_base,88 f64 transfer_per_token,96 i64 stages,104 f64 iteration,112 f64 pooling,120 f64 utilisation,128 u64 seen,136 u64 bits," + qoeLines(144, "qoe_"),
	Refine:    "0 i64 boundary,8 i64 low,16 i64 high,24 i64 peers,32 i64 successors," + qoeLines(40, "") + ",80 f64 zero,88 i64 local",
	Quote:     "0 i64 capacity,8 i64 held,16 i64 promised,24 i64 incoming,32 i64 throughput,40 i64 length,48 text request,56 u32 cause,60 u32 bits",
	Outlier:   "0 i64 own,8 i64 mean",
	Place:     "0 text request,8 text model,16 i64 input,24 i64 cached,32 i64 output,40 i64 max_output,48 u32 features,52 u32 bits,56 i64 hops",
	Guard:     "0 text model,8 u64 epoch_now,16 u64 epoch_next,24 u32 now,28 u32 replicas,32 u32 names,36 u32 zero",
}

var recordTables = map[Kind]string{
	Partition: "0 i64 edge,8 f64 arrivals,16 f64 tokens,24 f64 reads,32 f64 prefill,40 f64 prefill2,48 f64 weight,56 f64 crossings,64 f64 in_flight,72 f64 sum_input,80 f64 sum_input2,88 f64 sum_length",
	Refine:    "0 i64 input,8 i64 length",
	Select:    "0 i64 load,8 i64 start,16 text from",
	Place:     "0 i64 low,8 i64 high,16 i64 waiting,24 i64 load,32 i64 prefix,40 text replica,48 u64 bits,56 i64 running,64 i64 price",
	Guard:     "0 i64 low,8 i64 high,16 u32 first,20 u32 count",
}

var outputTables = map[Kind]string{
	Partition: "0 u32 hdr_len,4 u32 bits,8 u32 stages,12 u32 stride,16 f64 cost,24 f64 one_stage",
	Refine:    "0 i64 proposal",
	Quote:     "0 i64 load,8 i64 start",
	Outlier:   "0 i64 excess",
	Guard:     "0 u32 code,4 i32 stage,8 u32 detail_len,12 u32 zero",
}

type field struct {
	At    int    `json:"at"`
	Type  string `json:"type"`
	Name  string `json:"name"`
	Value string `json:"value"`
}

// uncovered returns the areas of a frame's header, arguments and records that the tables do not list: a field
// without a line is missing from NAME.json, and from the header for C, which is made of it.
func uncovered(kind Kind, b []byte) (missing []string) {
	le := binary.LittleEndian
	sizes := map[string]int{"u16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8, "f64": 8, "text": 8}
	for _, area := range []struct {
		name, table string
		size        int
	}{
		{"header", headerTable, int(le.Uint16(b[4:]))}, {"args", argTables[kind], int(le.Uint32(b[20:]))},
		{"records", recordTables[kind], int(le.Uint32(b[32:]))},
	} {
		listed := 0
		for _, f := range tableLines(area.table) {
			listed += sizes[f.Type]
		}
		if listed != area.size {
			missing = append(missing, fmt.Sprintf("%s: %d of %d bytes are listed", area.name, listed, area.size))
		}
	}
	return missing
}

// tableLines parses a table.
func tableLines(table string) (list []field) {
	for _, line := range strings.FieldsFunc(table, func(r rune) bool { return r == ',' || r == '\n' }) {
		var f field
		fmt.Sscan(line, &f.At, &f.Type, &f.Name)
		list = append(list, f)
	}
	return list
}

// fields reads the fields of a table from b[at:].
func fields(b []byte, at int, table, prefix string, aux []byte) (list []field) {
	le := binary.LittleEndian
	for _, f := range tableLines(table) {
		p := b[at+f.At:]
		var v string
		switch f.Type {
		case "u16":
			v = fmt.Sprint(le.Uint16(p))
		case "u32":
			v = fmt.Sprint(le.Uint32(p))
		case "i32":
			v = fmt.Sprint(int32(le.Uint32(p)))
		case "u64":
			v = fmt.Sprint(le.Uint64(p))
		case "i64":
			v = fmt.Sprint(int64(le.Uint64(p)))
		case "f64":
			v = strconv.FormatFloat(math.Float64frombits(le.Uint64(p)), 'g', -1, 64)
		case "text":
			v = string(aux[le.Uint32(p):][:le.Uint32(p[4:])])
		}
		list = append(list, field{at + f.At, f.Type, prefix + f.Name, v})
	}
	return list
}

// describe lists every field of a frame.
func describe(kind Kind, b []byte) []field {
	le := binary.LittleEndian
	at := func(off int) int { return int(le.Uint32(b[off:])) }
	aux := b[at(36):][:at(40)]
	list := fields(b, 0, headerTable, "", nil)
	list = append(list, fields(b, at(16), argTables[kind], "args.", aux)...)
	for i := range at(28) {
		list = append(list, fields(b, at(24)+i*at(32), recordTables[kind], fmt.Sprintf("records[%d].", i), aux)...)
	}
	if kind == Configure {
		list = append(list, field{at(36), "bytes", "configuration", string(aux)})
	}
	if kind == Guard {
		args := b[at(16):]
		for i := range int(le.Uint32(args[28:])) {
			list = append(list, fields(b, at(36)+int(le.Uint32(args[32:]))+8*i, "0 text replica", fmt.Sprintf("names[%d].", i), aux)...)
		}
	}
	if n := at(48); n > 0 {
		list = append(list, field{at(44), "bytes", "state", string(b[at(44):][:n])})
	}
	return list
}

// golden returns the content of NAME.json, in its order.
func golden(v vector, frame []byte) []byte {
	le := binary.LittleEndian
	result := v.answer(frame)
	status, value := Unpack(result)
	var w bytes.Buffer
	quote := func(s any) string {
		b, _ := json.Marshal(s)
		return string(b)
	}
	list := func(name string, fields []field) {
		fmt.Fprintf(&w, "  %q: [", name)
		for i, f := range fields {
			fmt.Fprintf(&w, "%s\n    %s", map[bool]string{true: ","}[i > 0], quote(f))
		}
		fmt.Fprint(&w, "\n  ]")
	}
	fmt.Fprintf(&w, "{\n  \"abi\": %q,\n  \"about\": %s,\n  \"kind\": %q,\n  \"export\": %q,\n  \"length\": %d,\n", Name, quote(v.about), v.kind, v.kind.Export(), len(frame))
	list("frame", describe(v.kind, frame))
	fmt.Fprintf(&w, ",\n  \"result\": {\"i64\": \"0x%016x\", \"status\": %d, \"value\": %d}", result, status, value)
	if table, ok := outputTables[v.kind]; ok && value > 0 {
		at := int(le.Uint32(frame[56:]))
		fmt.Fprintf(&w, ",\n  \"output_hex\": %q,\n", hex.EncodeToString(frame[at:at+int(value)]))
		out := fields(frame, at, table, "output.", nil)
		if v.kind == Partition {
			for i := range int(le.Uint32(frame[at+8:])) {
				out = append(out, fields(frame, at+int(le.Uint32(frame[at:]))+i*int(le.Uint32(frame[at+12:])),
					"0 i64 end,8 i64 replicas,16 f64 iteration", fmt.Sprintf("stages[%d].", i), nil)...)
			}
		}
		if v.kind == Guard {
			out = append(out, field{at + 16, "bytes", "output.detail", string(frame[at+16:][:le.Uint32(frame[at+8:])])})
		}
		list("output", out)
	}
	fmt.Fprint(&w, "\n}\n")
	return w.Bytes()
}

// dump prints a frame, 16 bytes a line.
func dump(frame []byte) []byte {
	var w bytes.Buffer
	for len(frame) > 0 {
		n := min(16, len(frame))
		fmt.Fprintf(&w, "%x\n", frame[:n])
		frame = frame[n:]
	}
	return w.Bytes()
}

func TestGoldenVectors(t *testing.T) {
	seen := map[Kind]bool{}
	for _, v := range vectors {
		seen[v.kind] = true
		frame := mustPut(t, v.put)
		for _, why := range uncovered(v.kind, frame) {
			t.Errorf("%s: %s", v.name, why)
		}
		text := dump(frame)
		description := golden(v, frame)
		if !json.Valid(description) {
			t.Errorf("%s: the description is no JSON", v.name)
		}
		for name, want := range map[string][]byte{v.name + ".hex": text, v.name + ".json": description} {
			testkit.CompareGolden(t, filepath.Join("testdata", name), want) // version 1 must not change
		}
	}
	for k := range NumKinds {
		if !seen[k] {
			t.Errorf("there is no vector of kind %v", k)
		}
	}
}

// TestGoldenFramesDecode decodes the files, not newly encoded frames.
func TestGoldenFramesDecode(t *testing.T) {
	for _, v := range vectors {
		text := testkit.Must(os.ReadFile(filepath.Join("testdata", v.name+".hex")))
		frame := testkit.Must(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))
		for _, k := range kindCases {
			want := Unsupported
			if k.kind == v.kind {
				want = OK
			}
			if _, s := k.get(frame); s != want {
				t.Errorf("%s read as %v: %v", v.name, k.kind, s)
			}
		}
	}
}

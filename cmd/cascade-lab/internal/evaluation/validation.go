package evaluation

import (
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/report"
)

// validation lists what the simulator was compared with. The figures are those of BENCHMARKS.md: this page is
// made in virtual time, and measures nothing.
func validation() webpage.Section {
	return webpage.Section{
		ID: "validation", Title: "What the simulator was compared with",
		Paragraphs: []string{"Errors of one machine, from BENCHMARKS.md, section \"The simulator\"; each command repeats its comparison."},
		Tables: []report.Table{{
			Header: []string{"compared with", "target", "error", "command"}, Left: 4,
			Rows: [][]string{
				{"a real vLLM on RTX PRO 6000, 300 requests of ShareGPT at 10/s (log of LLMServingSim)", "p50 within 10 %, p95 within 20 %", "TTFT, TPOT and end to end within 5.4 % at p50 and 5.0 % at p95; throughput 4.4 %", "go test -v -run AgainstVLLM ./engine/sim -vllm-log FILE -skew-table FILE"},
				{"closed forms: one request, a full batch, M/D/1", "each request's wait exact; the mean within 2, 5 and 15 % at loads of 0.3, 0.7 and 0.9, which is what 20,000 arrivals vary by", "within the targets", "go test -run 'SingleRequest|FullBatch|MD1' ./engine/sim"},
				{"emulated engines behind a round-robin proxy, over HTTP on a fake clock", "15 %", "0.1 % at p50 and p95", "go test -v -run AgainstEmulatedFleet ./engine/sim"},
				{"Cascade's own fleet in real time: proxy, migrators, emulated engines", "p50 within 15 %", "TTFT, TPOT, normalised and end to end within 8.5 % at p50, in six runs; single p95 up to 30 %", "make bench-lab WHAT=simulator"},
				{"real Envoy's shares, by weights, and while a replica drains", "3 points", "0.01 points", "make bench-lab WHAT=simulator"},
			},
		}},
	}
}

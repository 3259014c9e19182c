package costfit

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

var (
	tables = flag.String("tables", "", "folder with the public measurement tables, to refit the built-in profiles")
	update = flag.Bool("update", false, "with -tables: write the refitted profiles")
)

// fits returns the inputs of each built-in profile's fit, file by file.
func fits(open func(string) io.Reader) []FitConfig {
	const (
		aic   = "ai-dynamo/aiconfigurator generation_attention_perf, "
		lss   = "casys-kaist/LLMServingSim RTXPRO6000 Llama-3.1-8B bf16, vLLM 0.19"
		flops = 989e12 // H100 and H200 SXM, bf16 dense
		host  = 500e-6
	)
	return []FitConfig{
		{Name: "h200-llama-3.1-8b", Source: aic + "H200 SXM, vLLM 0.24 FA3", Model: Llama8B(), Device: Device{Memory: 141e9, Flops: flops, Overhead: host}, Generation: open("h200_sxm_attention_vllm_0.24.0_generation_attention_perf.csv.gz")},
		{Name: "h100-llama-3.1-8b", Source: aic + "H100 SXM, vLLM 0.24 FA3", Model: Llama8B(), Device: Device{Memory: 80e9, Flops: flops, Overhead: host}, Generation: open("h100_sxm_attention_vllm_0.24.0_generation_attention_perf.csv.gz")},
		{Name: "a100-llama-3.1-8b", Source: aic + "A100 SXM, vLLM 0.14", Model: Llama8B(), Device: Device{Memory: 80e9, Flops: 312e12, Overhead: host}, Generation: open("a100_sxm_attention_vllm_0.14.0_generation_attention_perf.csv.gz")},
		{
			Name: "rtxpro6000-llama-3.1-8b", Source: lss, Model: Llama8B(), Device: Device{Memory: 96e9, Overhead: 3e-3, OverheadFrom: "the value, in whole ms, that brings a replay of LLMServingSim's log of a real vLLM run closest to it (p50 to p99 of TPOT and TTFT within 3 %)"},
			Attention: open("rtxpro6000_llama8b_attention.csv.gz"), Dense: open("rtxpro6000_llama8b_dense.csv.gz"),
			PerSequence: open("rtxpro6000_llama8b_per_sequence.csv.gz"), Skew: open("rtxpro6000_llama8b_decode_skew.csv.gz"),
		},
	}
}

// TestBuiltinIsTheFit refits the built-in profiles from the public tables, which are not in the
// repository.
func TestBuiltinIsTheFit(t *testing.T) {
	if *tables == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the public tables are not in the repository", Remedy: "give their folder: -tables FOLDER"})
	}
	open := func(name string) io.Reader {
		f, err := os.Open(filepath.Join(*tables, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	for _, c := range fits(open) {
		c.Command = "go test -C cmd/cascade-lab ./internal/costfit -run TestBuiltinIsTheFit -tables FOLDER -update"
		got, err := Fit(c)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			data, err := json.MarshalIndent(got, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(testkit.Root(t), "engine", "cost", "profiles", got.Name+".json"), append(data, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := cost.Builtin(got.Name)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateApprox(1e-4, 0)); d != "" {
			t.Errorf("%s is not what Fit produces (-shipped +fitted):\n%s", got.Name, d)
		}
	}
}

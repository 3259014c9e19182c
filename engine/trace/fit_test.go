package trace

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// These flags name the public traces, from which the test fits the built-in mixes again:
//
//	go test ./engine/trace -run FitOfPublicTraces -update \
//	  -chat AzureLLMInferenceTrace_conv.csv -conversation conversation_trace.jsonl
var (
	chatFile         = flag.String("chat", "", "Azure's 2023 conversation trace, to fit the mix of that name to")
	conversationFile = flag.String("conversation", "", "Mooncake's FAST'25 conversation trace, to fit the mix of that name to")
	update           = flag.Bool("update", false, "write mixes.json and testdata/fit.txt")
)

// TestFitOfPublicTraces fits the built-in mixes and reports how good the fit is. It fails if a
// generated trace differs too much from the real one.
func TestFitOfPublicTraces(t *testing.T) {
	if *chatFile == "" || *conversationFile == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the public traces are not in the repository", Remedy: "give their files: -chat FILE -conversation FILE"})
	}
	mixes := make(map[string]Generator)
	var report strings.Builder
	report.WriteString("Written by: go test ./engine/trace -run FitOfPublicTraces -update -chat FILE -conversation FILE\n")
	for _, f := range []struct {
		name, file, source string
		spread             time.Duration
		components         int
	}{
		{"chat", *chatFile, "azure2023_conv, Azure/AzurePublicDataset", 0, 24},
		// The trace's clock ticks every 3 s.
		{"conversation", *conversationFile, "conversation_trace FAST25, kvcache-ai/Mooncake", 3 * time.Second, 16},
	} {
		file, err := os.Open(f.file)
		if err != nil {
			t.Fatal(err)
		}
		real, err := Read(file, filepath.Base(f.file))
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		real, err = Shape{Spread: f.spread, Seed: 1}.Apply(real)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Fit(real, FitConfig{Name: f.name, Source: f.source, Components: f.components, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		mixes[f.name] = g
		g.Requests, g.Seed = len(real), 2
		generated, err := g.Generate()
		if err != nil {
			t.Fatal(err)
		}
		q := Compare(real, generated)
		fmt.Fprintf(&report, "\n%s: %s, %d requests; %d components, rate %.2f/s, gap CV %.2f, swing %.2f\n%s",
			f.name, f.source, len(real), len(g.Classes[0].Lengths), g.Rate, g.GapCV, g.Swing, q)
		if q.InputKS > 0.05 || q.OutputKS > 0.05 {
			t.Errorf("%s: KS distances %.3f and %.3f are above 0.05", f.name, q.InputKS, q.OutputKS)
		}
	}
	t.Log(report.String())
	if !*update {
		return
	}
	text, err := json.MarshalIndent(mixes, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"mixes.json": append(text, '\n'), "testdata/fit.txt": []byte(report.String())} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

package frontier

import (
	_ "embed" // for the workloads that are no shipped mix
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/engine/trace"
)

//go:embed workloads.json
var chosen []byte

// openWorkloads returns the named generators, all of them for no name, or one fitted to a trace file.
func openWorkloads(names, file string) ([]trace.Generator, error) {
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		requests, err := trace.Read(f, file)
		if err != nil {
			return nil, err
		}
		g, err := trace.Fit(requests, trace.FitConfig{Name: file})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return []trace.Generator{g}, nil
	}
	var own map[string]trace.Generator
	if err := json.Unmarshal(chosen, &own); err != nil {
		return nil, fmt.Errorf("workloads.json: %w", err)
	}
	all := append(trace.Names(), "documents", "reasoning")
	wanted := split(names)
	if len(wanted) == 0 {
		wanted = all
	}
	var out []trace.Generator
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("-workloads: no workload %q; there are %s", name, strings.Join(all, ", "))
		}
		g, ok := trace.Named(name)
		if !ok {
			g = own[name]
		}
		g.Name = name
		out = append(out, g)
	}
	return out, nil
}

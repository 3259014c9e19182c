package evaluation

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// Inputs are what an Evaluation is made of. All fields are required.
type Inputs struct {
	// Workloads and Engines are those of the comparison with routers: every workload on every engine. Their
	// names must differ.
	Workloads []Workload
	Engines   []cost.Profile
	// Skew is the table of the attention case "measured", and SkewSource its description.
	Skew       *cost.SkewTable
	SkewSource string
	Size       Size
	Seed       uint64 // of the first run of each point; the others count up from it
	Command    string // that makes the page again
}

// Size is how much is simulated.
type Size struct {
	Name string
	// The paper's experiments: replicas (a multiple of 4), seeds, and how long requests arrive.
	PaperReplicas, PaperSeeds int
	PaperSeconds              float64
	PaperLoads                []float64 // at least two, rising; those from heavyLoad on are "heavy load"
	// The comparison with routers. Requests arrive for RouterSeconds, and for longer until there are
	// RouterRequests, but for no longer than six times as long.
	RouterReplicas, RouterSeeds   int
	RouterSeconds, RouterRequests float64
	RouterLoads                   []float64
}

// Full is the size whose figures are quoted.
func Full() Size {
	return Size{
		Name: "full", PaperReplicas: 16, PaperSeeds: 1, PaperSeconds: 150, PaperLoads: []float64{0.2, 0.6, 0.9, 1.15},
		RouterReplicas: 8, RouterSeeds: 5, RouterSeconds: 60, RouterRequests: 2500, RouterLoads: []float64{0.5, 0.8, 1},
	}
}

// Quick is the size of a look: too small for any conclusion, and the page says so.
func Quick() Size {
	return Size{
		Name: "quick", PaperReplicas: 4, PaperSeeds: 1, PaperSeconds: 24, PaperLoads: []float64{0.3, 1},
		RouterReplicas: 4, RouterSeeds: 1, RouterSeconds: 16, RouterRequests: 100, RouterLoads: []float64{0.5, 1.1},
	}
}

// heavyLoad is the least load that counts as heavy in the paper's rows.
const heavyLoad = 0.8

// warmShare is the part of a run that is not measured: engines fill, and plans are made.
const warmShare = 0.4

// Evaluation is the evaluation of some inputs. It is immutable.
type Evaluation struct {
	in        Inputs
	shareGPT  string // name of the paper's workload
	workloads map[string]*workload
	engines   map[string]cost.Profile
}

// New returns the evaluation of the inputs. The error names what is wrong with them.
func New(in Inputs) (*Evaluation, error) {
	e := &Evaluation{in: in, shareGPT: "ShareGPT", workloads: map[string]*workload{}}
	var err error
	if e.engines, err = paperEngines(); err != nil {
		return nil, err
	}
	if len(in.Workloads) == 0 || len(in.Engines) == 0 || in.Skew == nil {
		return nil, errors.New("evaluation: Workloads, Engines and Skew are required")
	}
	for _, p := range in.Engines {
		if err := p.Validate(); err != nil {
			return nil, err
		}
		if _, twice := e.engines[p.Name]; twice {
			return nil, fmt.Errorf("two profiles are named %q: give different ones", p.Name)
		}
		e.engines[p.Name] = p
	}
	shareGPT, _ := trace.Named("sharegpt")
	paper := Workload{Name: e.shareGPT, Source: shareGPT.Source, Generator: shareGPT}
	for _, w := range append([]Workload{paper}, in.Workloads...) {
		if _, twice := e.workloads[w.Name]; twice {
			return nil, fmt.Errorf("two workloads are named %q: give different ones", w.Name)
		}
		if e.workloads[w.Name], err = newWorkload(w); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// lookup returns the outcome of a run.
type lookup func(Run) Outcome

// Runs lists the simulations that Page needs, without repetitions.
func (e *Evaluation) Runs() []Run {
	var out []Run
	seen := map[Run]bool{}
	e.page(func(r Run) Outcome {
		if !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
		return Outcome{}
	})
	return out
}

// Page returns the report of the outcomes of all Runs. The error names a run that is missing.
func (e *Evaluation) Page(outcomes map[Run]Outcome) (webpage.Page, error) {
	for _, r := range e.Runs() {
		if _, ok := outcomes[r]; !ok {
			return webpage.Page{}, fmt.Errorf("no outcome of the run: %s", r)
		}
	}
	return e.page(func(r Run) Outcome { return outcomes[r] }), nil
}

// page makes the report. Which runs it looks up does not depend on their outcomes.
func (e *Evaluation) page(get lookup) webpage.Page {
	rows, details := e.paperRows(get)
	routers, verdicts := e.compareRouters(get)
	page := webpage.Page{Title: "The paper's evaluation, and ours, in simulation", Summary: e.summary(rows, verdicts)}
	page.Sections = append(page.Sections, verdictSection(verdicts, e.in.Size), rowsSection(rows))
	page.Sections = append(page.Sections, routers...)
	page.Sections = append(page.Sections, details...)
	page.Sections = append(page.Sections, validation(), e.assumptions())
	return page
}

// summary returns the paragraphs below the title.
func (e *Evaluation) summary(rows []row, verdicts []verdict) []string {
	count := map[status]int{}
	for _, r := range rows {
		count[r.status]++
	}
	out := []string{
		"Nothing here ran on a GPU. Fleets of replicas are simulated in virtual time: every replica runs the emulator's scheduler at the prices of a cost profile, and Cascade decides by the packages that production runs. What the simulator was compared with, and its assumptions, are listed at the end.",
		fmt.Sprintf("Of the paper's figures and claims, %d are reproduced, %d approximated, and %d impossible here; each has a row that says how, with the paper's number beside ours.", count[reproduced], count[approximated], count[impossible]),
		countVerdicts(verdicts, e.in.Size),
		fmt.Sprintf("Made by: %s (size %s, seed %d). The same command gives the same bytes.", e.in.Command, e.in.Size.Name, e.in.Seed),
	}
	if e.in.Size.Name != Full().Name {
		out = append(out, "This is a quick look with few, short runs: its figures show that the page works, and no more.")
	}
	return out
}

// assumptions lists them.
func (e *Evaluation) assumptions() webpage.Section {
	s := webpage.Section{ID: "assumptions", Title: "Assumptions"}
	say := func(format string, args ...any) { s.List = append(s.List, fmt.Sprintf(format, args...)) }
	size := e.in.Size
	say("Load is the rate of arrivals over the fleet's capacity by the linear cost model: each request costs its prefill, its share of the iterations of a full batch, and its attention; prefixes that caches hold are not counted. Load 1 is therefore about where a fleet saturates.")
	say("Requests are measured if they arrive after the first %.0f %% of a run (%.0f s of %.0f s in the paper's experiments): engines fill, and plans are made. What a request waits for at the end of a run counts in full.", 100*warmShare, warmShare*size.PaperSeconds, size.PaperSeconds)
	say("Tokens/s counts the answers that ended between the warm-up and the last arrival: also those of a backlog that the warm-up left. Requests that failed are in no latency; the comparison with routers counts them.")
	say("Requests longer than %d tokens, prompt and answer together, are dropped.", MaxLength)
	say("The paper's experiments have %d replicas and %d seed or seeds, the comparison with routers %d and %d. A verdict, better or worse, is given only where the whole 95 %% interval of the ratio (Student's t on logarithms, pairs of equal seeds) is more than 1 %% away from 1, of at least five seeds. The rival is the best one by the mean of that figure in the same runs, which favours the rivals a little; of twenty figures of equal systems one is expected to differ.", size.PaperReplicas, size.PaperSeeds, size.RouterReplicas, size.RouterSeeds)
	say("Attention cases: A (sum) prices the sum of the lengths only. B (ten-percent) multiplies attention by 1.1 in every batch of two and more, as vidur does. C (measured) takes alpha, the share of the way to a batch of the longest length, from a table, outside of which its nearest point counts; the share of such iterations is printed. D (stress) takes half of that way for every batch: no measurement says so, it shows what would follow.")
	say("The table of case C: %s.", e.in.SkewSource)
	say("The paper's H20 is not public in any table. %q and its relatives are derived from the measured H200 profile, whose memory is as fast (4.8 TB/s by the data sheets): weights and KV by their bytes, launches by the layers, and dense work by the operations over %.0f %% of %.0f TFLOP/s, for prompt tokens and decoded ones alike. Reading weights and computing are added, not overlapped, so that large batches are a little too slow.", h20Base, 100*denseShare, h20Flops/1e12)
	say("%q is the measured RTX PRO 6000 profile with all times × %.2f, the ratio of the memory bandwidths (%.0f and %.0f GB/s), and the KV cache that %.0f GB leave. Tensor parallelism is extrapolated: what is divided evenly is, the rest is not, and each layer pays two all-reduces.", l40Base, proBandwidth/l40Bandwidth, proBandwidth/1e9, l40Bandwidth/1e9, l40Memory/1e9)
	say("vLLM and SGLang with their round-robin balancer are the policy round-robin on the same simulated engine: their kernels' differences are not simulated. Llumnix is our reading of its scheduler's published default policy, on the same engine.")
	say("Proxies know what they sent, and loads as of the last report, at most a second old. Plans and weights take effect at once. Networks and HTTP are not simulated; transfers share the profile's link.")
	say("Cascade knows which prefixes its own engine holds, and of the others what their summaries said; production's summaries are sketches, which at times name prefixes that are not there.")
	for _, w := range e.in.Workloads {
		say("Workload %s: %s.", w.Name, strings.TrimSuffix(w.Source, "."))
	}
	say("Workload %s: %s. Arrivals are a Poisson process.", e.shareGPT, e.workloads[e.shareGPT].Source)
	for _, p := range e.in.Engines {
		say("Engine %s: %s. %s.", p.Name, p.Source, strings.Join(p.How, "; "))
	}
	return s
}

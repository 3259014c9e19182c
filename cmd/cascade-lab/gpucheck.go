package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/measure"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
)

// checkFlags are the flags of "cascade-lab gpu-check".
type checkFlags struct {
	gpu    int
	layers int
	shape  measure.Shape
	groups []int
	steps  int
	python string
	out    string
	strict bool
}

func (f *checkFlags) flags(c *cobra.Command) {
	fl := c.Flags()
	fl.IntVar(&f.gpu, "gpu", 0, "index of the GPU, as nvidia-smi has it")
	fl.IntVar(&f.layers, "layers", 28, "layers of the model; each has a region for K and one for V")
	fl.Int64Var(&f.shape.BlockBytes, "block", 32<<10, "bytes of a block in one region, a multiple of 16")
	fl.IntVar(&f.shape.Pool, "pool", 1024, "blocks of a pool")
	fl.IntVar(&f.shape.Plan, "plan", 512, "blocks that are moved at once; 512 of 16 tokens are a request of 8,192")
}

// newCheck is "cascade-lab gpu-check".
func newCheck(s *settings) *cobra.Command {
	f := &checkFlags{}
	c := &cobra.Command{
		Use:   "gpu-check",
		Short: "Measure how fast a GPU moves KV blocks, and what that costs the work beside it",
		Long: `Gpu-check times, on one GPU, the paths by which the blocks of a request could be moved:
within the GPU, out of the memory of another process by CUDA IPC, to and from the host,
and the checksum by which each move is verified. "contiguous" is what the hardware can do
with one large copy; the kernel is what transport cuda uses. Each path is verified: its work
is done once more into memory that was cleared, and what arrives must have the checksums
that a processor computes for the source's blocks, which all differ. A path that moves other
bytes has no figure, and makes gpu-check fail.

Then it times steps of another process that decodes, alone and beside a transfer that never
pauses: by the kernel, which needs multiprocessors as decoding does, and by the batch call,
which is for the copy engines (whether a driver uses them within one GPU, or kernels of its
own, is up to it). Without MPS a GPU runs kernels of two processes in turns, and the low
priority of a transfer's stream counts among the streams of its own process only: a step
waits for the kernel's turns then, however few thread groups it has. Decoding at most 1 %
slower therefore needs MPS for engine and migrator (nvidia-cuda-mps-control; a fault of one
then ends the other's work, too), or copies by the copy engines, to which transport cuda
leaves runs of 256 KiB and more.

With PyTorch, by --python, that process is PyTorch's, with a pool of PyTorch's allocator; the
time of attention over batches of one size, whose lengths add up to the same and differ in
spread, gives κ, what unequal lengths cost a batch, with its standard error. Cascade's cost
profiles take it as "kappa".

For each goal a line says whether this GPU reaches it: "met", "not met", or "not measured"
and why. Goals are for the default plan, and for the 16 thread groups of transport cuda. The
exit code does not depend on them, since a GPU may be busy with others' work while it is
checked; with --strict it does.

It needs the GPU's memory for about eight pools (--pool · --layers · 2 · --block bytes),
and changes nothing. On a GPU that others use, the figures are theirs, too.

It exits with 3 where there is no GPU to check, and says what is missing; make then exits
with 2, as for all that fails. "make gpu-check" runs the transport's tests on the GPU as well.`,
		Example: `  cascade-lab gpu-check
  cascade-lab gpu-check --gpu 1 --layers 32 --out results
  cascade-lab gpu-check --python "" --json
  cascade-lab gpu-check --strict # fails unless all goals are met`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.check(cmd.Context(), f) },
	}
	f.flags(c)
	fl := c.Flags()
	fl.IntSliceVar(&f.groups, "groups", []int{4, 8, 16, 32, 64}, "numbers of thread groups (CTAs) that kernels are run with")
	fl.IntVar(&f.steps, "steps", 200, "decode steps that are timed, alone and beside each transfer")
	fl.StringVar(&f.python, "python", "python3", "Python interpreter that has PyTorch; empty for none")
	fl.StringVar(&f.out, "out", "", "directory for check.json and a picture of κ")
	fl.BoolVar(&f.strict, "strict", false, "exit with 1 unless all goals are met")
	return c
}

// newHold is the process whose memory pool "cascade-lab gpu-check" reads: an internal command.
func newHold(s *settings) *cobra.Command {
	f := &checkFlags{}
	c := &cobra.Command{
		Use: "gpu-hold", Hidden: true, Args: cobra.NoArgs, Short: "Own a pool on a GPU, for gpu-check",
		RunE: func(*cobra.Command, []string) error {
			d, err := openDriver()
			if err != nil {
				return err
			}
			return measure.ServeOwner(f.measureConfig(d), os.Stdin, s.stdout)
		},
	}
	f.flags(c)
	return c
}

// measureConfig returns the configuration of the measurements.
func (f *checkFlags) measureConfig(d *cuda.Driver) measure.Config {
	shape := f.shape
	shape.Regions = 2 * f.layers
	groups := f.groups
	if len(groups) == 0 { // for the hold command, which runs no kernels
		groups = []int{1}
	}
	return measure.Config{Driver: d, Ordinal: f.gpu, Shape: shape, Groups: groups}
}

// absentError reports that a check was not possible because the host lacks the
// device.
type absentError struct{ err error }

func (e *absentError) Error() string { return "skipped: no GPU to check: " + e.err.Error() }
func (e *absentError) Unwrap() error { return e.err }

// noDevice is CUDA_ERROR_NO_DEVICE.
const noDevice cuda.Code = 100

// openDriver loads the driver; without one, the error is an absentError.
func openDriver() (*cuda.Driver, error) {
	if os.Getenv("CUDA_DEVICE_ORDER") == "" {
		os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID") // the order of nvidia-smi
	}
	d, err := cuda.Open(os.Getenv("CASCADE_TEST_LIBCUDA"))
	if errors.Is(err, device.ErrNoLibrary) || errors.Is(err, device.ErrNoCgo) || cuda.HasCode(err, noDevice) {
		return nil, &absentError{err}
	}
	return d, err
}

// checkResult is what "cascade-lab gpu-check --json" prints.
type checkResult struct {
	GPU    string `json:"gpu"`
	Driver int    `json:"driver"` // CUDA's version: 12080 is 12.8
	// VMM and DMABuf report how the driver shares memory with other processes and devices.
	VMM    bool            `json:"vmm"`
	DMABuf bool            `json:"dma_buf"`
	Shape  measure.Shape   `json:"shape"`
	Rows   []measure.Row   `json:"rows"`
	Goals  []measure.Goal  `json:"goals"`
	Kernel string          `json:"attention,omitempty"` // the kernel that measured the points
	Points []measure.Point `json:"points,omitempty"`
	Kappa  *measure.Kappa  `json:"kappa,omitempty"`
	// Notes list what is missing, and why.
	Notes []string `json:"notes,omitempty"`
}

func (s *settings) check(ctx context.Context, f *checkFlags) error {
	d, err := openDriver()
	if err != nil {
		return err
	}
	n, err := d.Count()
	if err != nil {
		return err
	}
	if f.gpu < 0 || f.gpu >= n {
		return &absentError{fmt.Errorf("--gpu %d: the driver shows %d to this process", f.gpu, n)}
	}
	info, err := d.Device(f.gpu)
	if err != nil {
		return err
	}
	config := f.measureConfig(d)
	out := checkResult{GPU: info.Name, Driver: d.Version(), Shape: config.Shape, VMM: info.VMM, DMABuf: info.DMABuf}
	// An error keeps the results so far: the GPU may not be available again.
	err = out.measure(ctx, f, config)
	out.Goals = measure.EvaluateGoals(out.Rows)
	if f.strict {
		err = errors.Join(err, out.unmetGoals())
	}
	if f.out != "" && len(out.Rows) > 0 {
		err = errors.Join(err, out.write(f.out))
	}
	if s.json {
		return errors.Join(err, s.print(out))
	}
	for _, t := range out.tables() {
		err = errors.Join(err, t.Text(s.stdout))
	}
	return err
}

// unmetGoals returns an error unless all goals are met.
func (k *checkResult) unmetGoals() error {
	n := 0
	for _, g := range k.Goals {
		if g.Verdict != measure.Met {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d goals are not met or not measured; see the lines that begin with goal", n, len(k.Goals))
}

// measure runs the measurements and adds their rows.
func (k *checkResult) measure(ctx context.Context, f *checkFlags, c measure.Config) (err error) {
	r, err := measure.NewBench(c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if k.Rows, err = r.MeasureCopies(); cuda.Sticky(err) {
		return err
	}
	own := func(ctx context.Context) *exec.Cmd {
		self, err := os.Executable()
		if err != nil {
			self = os.Args[0]
		}
		cmd := exec.CommandContext(ctx, self, "gpu-hold", "--gpu", strconv.Itoa(f.gpu), "--layers", strconv.Itoa(f.layers),
			"--block", strconv.FormatInt(f.shape.BlockBytes, 10), "--pool", strconv.Itoa(f.shape.Pool), "--plan", strconv.Itoa(f.shape.Plan))
		cmd.Args[0], cmd.Stderr = os.Args[0], os.Stderr
		return cmd
	}
	if failed := k.measureBeside(ctx, r, own, f.steps); failed != nil {
		err = errors.Join(err, failed)
	}
	if f.python == "" || cuda.Sticky(err) {
		return err
	}
	// Without PyTorch the other results are valid.
	if err := k.measureTorch(ctx, r, f, c); err != nil {
		k.Notes = append(k.Notes, fmt.Sprintf("not measured with PyTorch: %v; set --python to an interpreter that has it", err))
	}
	return err
}

// measureBeside measures copies from the memory of another process.
func (k *checkResult) measureBeside(ctx context.Context, r *measure.Bench, command func(context.Context) *exec.Cmd, steps int) error {
	o, err := measure.StartOwner(ctx, command)
	if err != nil {
		return err
	}
	defer o.Close()
	return k.measureOwner(r, o, steps)
}

func (k *checkResult) measureOwner(r *measure.Bench, o *measure.Owner, steps int) error {
	rows, err := r.MeasurePulls(o)
	k.Rows = append(k.Rows, rows...)
	if err != nil {
		return err
	}
	rows, err = r.MeasureInterference(o, steps)
	k.Rows = append(k.Rows, rows...)
	return err
}

// measureTorch measures copies from PyTorch's memory, and fits κ.
func (k *checkResult) measureTorch(ctx context.Context, r *measure.Bench, f *checkFlags, c measure.Config) error {
	o, err := measure.StartOwner(ctx, measure.TorchCommand(f.python, c))
	if err != nil {
		return err
	}
	defer o.Close()
	if err := k.measureOwner(r, o, f.steps); err != nil {
		return err
	}
	a, err := o.Do(measure.Request{Spread: true})
	if err != nil {
		return err
	}
	k.Kernel, k.Points = a.Kernel, a.Points
	fit, err := measure.FitKappa(a.Points)
	if err != nil {
		return err
	}
	k.Kappa = &fit
	return nil
}

// write writes check.json and the plot of κ into a directory.
func (k *checkResult) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(k, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "check.json"), append(text, '\n'), 0o644)
	}
	if err != nil || k.Kappa == nil {
		return err
	}
	picture, err := k.picture()
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "kappa.svg"))
	if err != nil {
		return err
	}
	return errors.Join(picture.Write(file), file.Close())
}

// picture plots the batches that have the same sum of lengths but different lengths.
func (k *checkResult) picture() (report.Picture, error) {
	var points []report.XY
	tokens := 0
	for _, p := range k.Points {
		if p.Skew() > 0 {
			tokens = p.Tokens
			points = append(points, report.XY{X: p.Skew(), Y: p.Seconds * 1e6})
		}
	}
	if len(points) == 0 {
		return report.Picture{}, report.ErrNoData
	}
	base, slope := (k.Kappa.Base+k.Kappa.PerToken*float64(tokens))*1e6, k.Kappa.PerToken*k.Kappa.Kappa*1e6
	right, top := 0.0, base
	for _, xy := range points {
		right, top = max(right, xy.X), max(top, xy.Y)
	}
	end := report.XY{X: right, Y: base + slope*right}
	measured, fitted := report.SeriesStyle(1), report.SeriesStyle(0)
	return report.Figure{
		Title: fmt.Sprintf("%s, %s: κ = %s", k.GPU, k.Kernel, k.Kappa.Text()), Width: 560,
		Legend: []report.Key{{Name: "measured", Style: report.Style{Colour: measured.Colour, Dots: true}}, {Name: "fitted", Style: fitted}},
		Charts: []report.Chart{{
			X:      report.LinearAxis("longest sequence beyond the mean, in tokens", 0, right*1.02, report.ShortCount),
			Y:      report.LinearAxis("attention of a decode step, in µs", 0, max(top, end.Y)*1.05, report.ShortCount),
			Height: 240, Draw: func(g *report.Grid) {
				g.Line([]report.XY{{Y: base}, end}, fitted)
				for _, xy := range points {
					g.Dot(xy, measured)
				}
			},
		}},
	}.Draw()
}

// tables returns the results as tables.
func (k *checkResult) tables() (out []report.Table) {
	first := map[string]float64{} // the rate of the last contiguous copy of each part
	for _, r := range k.Rows {
		n := len(out) - 1
		if n < 0 || out[n].Title != r.Part {
			out = append(out, report.Table{Title: r.Part, Header: []string{"path", "CTAs", "time", "submitted in", "rate", "of contiguous"}, Left: 1})
			if n++; r.Part == measure.Decode {
				out[n].Header = []string{"step", "CTAs", "time", "slower"}
			}
		}
		groups := "-"
		if r.Groups > 0 {
			groups = strconv.Itoa(r.Groups)
		}
		row := []string{r.Path, groups, micros(r.Seconds)}
		if r.Of != "" {
			row[0] += ", of " + r.Of
		}
		if r.Part == measure.Decode {
			slower := "-"
			if r.Slower != nil {
				slower = fmt.Sprintf("%+.1f %%", *r.Slower*100)
			}
			out[n].Rows = append(out[n].Rows, append(row, slower))
			continue
		}
		if strings.HasPrefix(r.Path, "contiguous") { // one per owner, and none if the copy failed
			first[r.Part] = r.Rate
		}
		share := "-"
		if r.Part != measure.Checksum && first[r.Part] > 0 {
			share = fmt.Sprintf("%.2f", r.Rate/first[r.Part])
		}
		out[n].Rows = append(out[n].Rows, append(row, micros(r.Submit), fmt.Sprintf("%.1f GB/s", r.Rate/1e9), share))
	}
	if len(out) == 0 {
		return nil
	}
	out[0].Title = fmt.Sprintf("%s: %s of %d blocks × %d regions of %d bytes; %s", k.GPU, mebibytes(k.Shape.Bytes()), k.Shape.Plan, k.Shape.Regions, k.Shape.BlockBytes, out[0].Title)
	last := &out[len(out)-1]
	if k.Kappa != nil {
		last.Notes = append(last.Notes, fmt.Sprintf("κ = %s, from %d batches, by %s; %.3g µs per 1,000 tokens", k.Kappa.Text(), k.Kappa.Points, k.Kernel, k.Kappa.PerToken*1e9))
	}
	for _, g := range k.Goals {
		last.Notes = append(last.Notes, g.Text)
	}
	last.Notes = append(last.Notes, k.Notes...)
	return out
}

func micros(seconds float64) string { return fmt.Sprintf("%.1f µs", seconds*1e6) }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

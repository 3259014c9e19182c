package measure

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	driver "github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// Bounds of the exchange with an owner.
const (
	startTime  = 2 * time.Minute // PyTorch starts slowly
	answerTime = 5 * time.Minute
	maxLine    = 1 << 20 // bytes
)

// Hello is the first line that an owner writes: JSON, like all lines.
type Hello struct {
	Owner  string `json:"owner"`  // for people
	Handle string `json:"handle"` // of its pool as in engine/api, in hexadecimal
	Bytes  int64  `json:"bytes"`  // of the pool
	Seed   uint64 `json:"seed"`   // of the pool's bytes, different each time; see fillPattern
	Error  string `json:"error,omitempty"`
}

// Request is a line to an owner. One of its fields is set.
type Request struct {
	Decode int  `json:"decode,omitempty"` // time so many decode steps
	Spread bool `json:"spread,omitempty"` // time attention over lengths of several spreads
}

// Response is the line that answers a Request.
type Response struct {
	Seconds []float64 `json:"seconds,omitempty"` // of each step
	Kernel  string    `json:"kernel,omitempty"`  // the attention kernel, of a Spread
	Points  []Point   `json:"points,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Point is one batch that attention was timed over.
type Point struct {
	Batch   int     `json:"batch"`
	Tokens  int     `json:"tokens"`  // sum of all lengths
	Longest int     `json:"longest"` // length
	Seconds float64 `json:"seconds"`
}

// Owner is another process that has a pool on the GPU and works there.
type Owner struct {
	Hello
	Pool cuda.Handle

	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan []byte // closed when the process writes no more
	stop  context.CancelFunc
}

// StartOwner starts an owner and reads its Hello. It must be closed. command makes the
// command, whose standard input and output StartOwner sets.
func StartOwner(ctx context.Context, command func(ctx context.Context) *exec.Cmd) (*Owner, error) {
	ctx, stop := context.WithCancel(ctx)
	o := &Owner{cmd: command(ctx), lines: make(chan []byte, 1), stop: stop}
	o.cmd.WaitDelay = time.Second
	var err error
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		stop()
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err == nil {
		err = o.cmd.Start()
	}
	if err != nil {
		stop()
		return nil, err
	}
	go func() {
		defer close(o.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			select {
			case o.lines <- append([]byte(nil), lines.Bytes()...):
			case <-ctx.Done():
			}
		}
	}()
	err = o.readLine(startTime, &o.Hello)
	if err == nil && o.Error != "" {
		err = errors.New(o.Error)
	}
	var raw []byte
	if err == nil {
		raw, err = hex.DecodeString(o.Handle)
	}
	if err == nil {
		o.Pool, err = cuda.ParseHandle(raw, o.Bytes)
	}
	if err == nil && o.Pool.Kind != cuda.IPC {
		err = fmt.Errorf("its pool is of kind %d, want an IPC pool", o.Pool.Kind)
	}
	if err != nil {
		o.Close()
		return nil, fmt.Errorf("start the owner of a pool: %w", err)
	}
	return o, nil
}

func (o *Owner) readLine(within time.Duration, v any) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case line, ok := <-o.lines:
		if !ok {
			return errors.New("it ended without an answer")
		}
		return json.Unmarshal(line, v)
	case <-timer.C:
		return fmt.Errorf("no answer in %v", within)
	}
}

// Do sends a request and returns its response.
func (o *Owner) Do(a Request) (Response, error) {
	line, err := json.Marshal(a)
	if err == nil {
		_, err = o.in.Write(append(line, '\n'))
	}
	var out Response
	if err == nil {
		err = o.readLine(answerTime, &out)
	}
	if err == nil && out.Error != "" {
		err = errors.New(out.Error)
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w", o.Owner, err)
	}
	return out, nil
}

// Close ends the process and waits for its end.
func (o *Owner) Close() {
	o.in.Close()
	ended := time.AfterFunc(startTime, o.stop)
	for range o.lines {
	}
	o.cmd.Wait() // its errors were reported in its responses, or it was killed
	ended.Stop()
	o.stop()
}

// MeasurePulls times pulls out of another process's pool, which must be as large as the
// bench's, and verifies each path against the bytes that its owner announced.
func (r *Bench) MeasurePulls(o *Owner) ([]Row, error) {
	s := r.config.Shape
	if o.Bytes < s.PoolBytes() {
		return nil, fmt.Errorf("measure: the pool of %s has %d bytes, want %d", o.Owner, o.Bytes, s.PoolBytes())
	}
	base, err := r.context.OpenIPC(o.Pool.Name)
	if err != nil {
		return nil, fmt.Errorf("measure: the pool of %s: %w", o.Owner, err)
	}
	src := side{at: base + driver.Pointer(o.Pool.Offset)}
	paths := []copyPath{{
		name: "contiguous, from " + o.Owner, work: func() error { return r.stream.Copy(r.dst, src.at, s.Bytes()) },
		to: r.poolDestination(r.inOrder, side{r.dst, true}), want: s.expectedSums(o.Seed, s.packedOffset),
	}}
	byPlan := copyPath{name: "kernel, from " + o.Owner, to: r.poolDestination(r.pairs, side{at: r.dst}), want: s.expectedSums(o.Seed, r.sourceOffset), reportsSums: true}
	rows, err := r.measurePaths(Across, s.Bytes(), append(paths, r.pathsByGroups(byPlan, func(groups int) error {
		return r.launch(transport.KernelCopy, groups, r.pairs, src, side{at: r.dst})
	})...))
	if err = errors.Join(err, r.stream.Wait(), r.context.CloseIPC(base)); err != nil {
		return rows, fmt.Errorf("measure: the pool of %s: %w", o.Owner, err)
	}
	return rows, nil
}

// MeasureInterference times an owner's steps alone, and while plans are copied
// continuously: by kernels, which share the GPU with the other process's, and by the
// batch call, which the driver gives to copy engines if it can. At the end the steps are
// timed alone again: the difference is noise.
func (r *Bench) MeasureInterference(o *Owner, steps int) (rows []Row, err error) {
	if _, err = o.Do(Request{Decode: steps}); err != nil { // the first steps run with low clocks
		return nil, err
	}
	paths := append([]copyPath{{name: Alone}}, r.pathsByGroups(copyPath{name: ByKernel}, func(groups int) error {
		return r.launch(transport.KernelCopy, groups, r.pairs, side{at: r.src}, side{at: r.dst})
	})...)
	if batch := r.batchWithin(); batch != nil {
		paths = append(paths, copyPath{name: ByCopies, work: batch})
	}
	for _, w := range append(paths, copyPath{name: AloneAgain}) {
		times, err := r.runBeside(o, steps, w.work)
		if err != nil {
			return rows, fmt.Errorf("measure: %s: %w", w.label(), err)
		}
		row := Row{Part: Decode, Path: w.name, Of: o.Owner, Groups: w.groups, Seconds: Median(times.Seconds)}
		if len(rows) > 0 && rows[0].Seconds > 0 {
			slower := row.Seconds/rows[0].Seconds - 1
			row.Slower = &slower
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// runBeside times an owner's steps while work, unless it is nil, runs repeatedly.
func (r *Bench) runBeside(o *Owner, steps int, work func() error) (Response, error) {
	if work == nil {
		return o.Do(Request{Decode: steps})
	}
	over, copied := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-over:
				copied <- nil
				return
			default:
			}
			if err := errors.Join(work(), r.stream.Wait()); err != nil {
				copied <- err
				return
			}
		}
	}()
	a, err := o.Do(Request{Decode: steps})
	close(over)
	return a, errors.Join(err, <-copied)
}

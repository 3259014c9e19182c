package measure

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	driver "github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// ServeOwner is an owner in this process: it has a pool of the shape, and answers
// requests until in ends. A step of its decoding reads the whole pool once, as attention
// does.
func ServeOwner(c Config, in io.Reader, out io.Writer) error {
	answers := json.NewEncoder(out)
	r, err := NewBench(c)
	if err != nil {
		return errors.Join(err, answers.Encode(Hello{Error: err.Error()}))
	}
	hello, err := r.newHello()
	if err != nil {
		return errors.Join(err, answers.Encode(Hello{Error: err.Error()}), r.Close())
	}
	if err := answers.Encode(hello); err != nil {
		return errors.Join(err, r.Close())
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var ask Request
		a := Response{}
		if err = json.Unmarshal(lines.Bytes(), &ask); err == nil {
			a, err = r.handleRequest(ask)
		}
		if err != nil {
			a = Response{Error: err.Error()}
		}
		if err := answers.Encode(a); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return errors.Join(lines.Err(), r.Close())
}

// newHello describes the source pool.
func (r *Bench) newHello() (Hello, error) {
	base, size, err := r.context.AllocationRange(r.src)
	if err != nil {
		return Hello{}, err
	}
	d, err := r.config.Driver.Device(r.config.Ordinal)
	if err != nil {
		return Hello{}, err
	}
	h := cuda.Handle{Kind: cuda.IPC, GPU: d.UUID, Offset: int64(r.src - base), Size: size}
	for i := range h.ID {
		h.ID[i] = byte(rand.Uint32())
	}
	if h.Name, err = r.context.IPCHandle(r.src); err != nil {
		return Hello{}, err
	}
	return Hello{Owner: fmt.Sprintf("process %d", os.Getpid()), Handle: hex.EncodeToString(h.Append(nil)), Bytes: r.config.Shape.PoolBytes(), Seed: r.seed}, nil
}

// maxSteps bounds the steps of a request.
const maxSteps = 100_000

func (r *Bench) handleRequest(q Request) (Response, error) {
	if q.Spread {
		return Response{}, errors.New("only a PyTorch owner can time attention")
	}
	if q.Decode < 1 || q.Decode > maxSteps {
		return Response{}, fmt.Errorf("%d steps: want 1 to %d", q.Decode, maxSteps)
	}
	d, err := r.config.Driver.Device(r.config.Ordinal)
	if err != nil {
		return Response{}, err
	}
	var a Response
	for range q.Decode {
		err := r.began.Record(r.stream)
		if err == nil {
			err = r.launch(transport.KernelSum, max(1, 2*d.Multiprocessors), r.pairs, side{at: r.src}, side{at: driver.Pointer(0)})
		}
		var ms float32
		if err = errors.Join(err, r.ended.Record(r.stream), r.ended.Wait()); err == nil {
			ms, err = r.ended.Since(r.began)
		}
		if err != nil {
			return a, err
		}
		a.Seconds = append(a.Seconds, float64(ms)/1e3)
	}
	return a, nil
}

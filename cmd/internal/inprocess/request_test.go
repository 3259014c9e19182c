package inprocess

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// reply is the whole answer to a request.
type reply struct {
	status int
	stage  string // from the route's header
	epoch  policies.Epoch
	kind   string // content type
	body   []byte
}

// send sends a request and reads the whole answer. header holds pairs of names and values to add.
func (r *fleetHarness) send(path, host string, body io.Reader, header ...string) (reply, error) {
	resp, err := r.open(context.Background(), path, host, body, header...)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	out := replyOf(resp)
	out.body, err = io.ReadAll(resp.Body)
	return out, err
}

func replyOf(resp *http.Response) reply {
	epoch, _ := strconv.ParseUint(resp.Header.Get(length.EpochHeader), 10, 64)
	return reply{
		status: resp.StatusCode, stage: resp.Header.Get(length.StageHeader),
		epoch: policies.Epoch(epoch), kind: resp.Header.Get("content-type"),
	}
}

// open sends a request and returns once the answer begins.
func (r *fleetHarness) open(ctx context.Context, path, host string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+path, body)
	if err != nil {
		return nil, err
	}
	req.Host = host
	req.Header.Set("content-type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return r.HTTP.Do(req)
}

// prompt returns a completions body of exactly size bytes, at least 80, that asks for output tokens.
func prompt(size, output int) []byte { return harness.Prompt(0, size, output) }

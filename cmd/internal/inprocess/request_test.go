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

// reply is what the tests read of an answer's head.
type reply struct {
	status int
	stage  string // from the route's header
	epoch  policies.Epoch
	kind   string // content type
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

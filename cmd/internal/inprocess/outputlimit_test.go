package inprocess

import (
	"io"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestOutputLimitOfEngine moves a chat that states no limit, on engines that bound every answer
// to 400 tokens: the answer has 400 tokens, not those of the target on top.
func TestOutputLimitOfEngine(t *testing.T) {
	t.Parallel()
	const most = 400
	r := newFleetHarness(t, harnessConfig{replicas: 2, edit: func(f *config.Fleet) { f.Speed = 2 },
		engine: func(c *emulator.Config) { c.Faults.MaxNewTokens = most }})
	body := `{"model":"` + llm + `","messages":[{"role":"user","content":"x"}],"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`
	answer := make(chan string, 1)
	front, at := r.fronts["r0"], r.replica("r0").Address
	go func() {
		resp, err := r.HTTP.Post("http://"+at+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	moved := func() bool {
		for _, leg := range front.LocalLegs() {
			if leg.Request.Output < 20 {
				continue
			}
			_, err := front.Migrate(t.Context(), frontend.Migration{Stream: leg.Request.ID, From: "r0", Epoch: leg.Epoch,
				To: frontend.Target{Replica: "r1", Address: r.replica("r1").Peer}, Cached: -1})
			testkit.NoError(t, err)
			return true
		}
		return false
	}
	r.WaitFor("the stream has moved", moved)
	text := <-answer
	events := strings.Split(strings.TrimSpace(text), "\n\n")
	usage := gjson.Parse(strings.TrimPrefix(events[max(len(events)-2, 0)], "data: ")).Get("usage")
	if n := usage.Get("completion_tokens").Int(); n != most {
		t.Errorf("the moved answer has %d tokens, want the %d that an engine generates\n%s", n, most, usage.Raw)
	}
}

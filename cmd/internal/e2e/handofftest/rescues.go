package handofftest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// apart is how many tokens are between two breaks of a stream. A stream that loses two engines in fewer ends.
const apart = 70

// PlayRescues breaks streams twice, first at one engine and then at the other, whenever the client
// has the ids of a character that has only begun, until it has done so as often as cuts says: what
// clients read in all is the engine's own answer. Half of the streams are chats. The engines are
// base URLs. edit, if not nil, edits the front ends' configuration.
func PlayRescues(t *testing.T, model string, engines [2]string, cuts int, edit func(*frontend.Config)) {
	t.Helper()
	p, proxies := NewProxied(t, model, engines, edit)
	rng := rand.New(rand.NewPCG(11, 12))
	done := 0
	for i := 0; done < cuts; i++ {
		if i == 10*cuts {
			t.Fatalf("%d streams broke inside a character %d times only", i, done)
		}
		var left, seen, next atomic.Int64
		left.Store(2)
		next.Store(5)
		hooks := Hooks{Cut: func(e gjson.Result) bool {
			ids := len(e.Get("choices.0.token_ids").Array())
			seen.Add(int64(ids))
			if ids == 0 || textOf(e) != "" || e.Get("choices.0.finish_reason").Type != gjson.Null || seen.Load() <= next.Load() || left.Add(-1) < 0 {
				return false
			}
			next.Store(seen.Load() + apart)
			return true
		}}
		for _, proxy := range proxies {
			proxy.SetHooks(hooks)
		}
		s := Stream{At: i % 2, Output: 300}
		if i/2%2 == 0 {
			s.Prompt = randomIDs(rng, 20+rng.IntN(300))
		} else {
			s.Text = fmt.Sprint("tell me of ", rng.Uint64())
		}
		p.Play(s)
		done += 2 - max(0, int(left.Load()))
	}
}

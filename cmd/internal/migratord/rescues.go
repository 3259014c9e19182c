package migratord

import (
	"fmt"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/api"
)

// maxRescues is how many rescues are remembered: a report comes twice a second.
const maxRescues = 256

// rescueLog are the last streams of this front that lost their engines, as reports
// tell of them. It is safe for concurrent use.
type rescueLog struct {
	mu   sync.Mutex
	list []*api.Migration // the oldest first; what is told is not changed
}

// add notes what became of a stream.
func (x *rescueLog) add(r frontend.Rescue, front string) {
	m := &api.Migration{
		// Deals have numbers alone after the replica, so that no move has this name.
		Id: fmt.Sprintf("%s#%d", r.Stream, r.Epoch), Request: r.Stream, Cause: "engine lost",
		FrontEnd: front, From: string(r.From), To: string(r.To), Method: "reprompt", State: "done", Tokens: int64(r.Length),
		StallSeconds: r.Duration.Seconds(), Seconds: r.Duration.Seconds(), StartedUnixMicros: r.Start.UnixMicro(),
	}
	if r.Err != nil {
		m.State, m.Reason = "aborted", r.Err.Error()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.list) == maxRescues {
		x.list = append([]*api.Migration(nil), x.list[1:]...)
	}
	x.list = append(x.list, m)
}

// all returns all that are remembered, the oldest first. It is not to be changed.
func (x *rescueLog) all() []*api.Migration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.list[:len(x.list):len(x.list)]
}

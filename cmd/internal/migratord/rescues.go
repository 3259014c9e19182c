package migratord

import (
	"fmt"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/api"
)

// maxRescues is how many rescues are kept. Two reports per second read them.
const maxRescues = 256

// rescueLog holds the latest streams of this front end that lost their engines, for reports. It is
// safe for concurrent use.
type rescueLog struct {
	mu   sync.Mutex
	list []*api.Migration // oldest first; entries are not changed
}

// add records the outcome of a rescue.
func (x *rescueLog) add(r frontend.Rescue, front string) {
	m := &api.Migration{
		// The ids of migrations contain no "#", so that none equals this id.
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

// all returns the recorded rescues, oldest first. The result must not be changed.
func (x *rescueLog) all() []*api.Migration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.list[:len(x.list):len(x.list)]
}

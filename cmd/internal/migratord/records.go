package migratord

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// maxRecords is how many records of one kind are kept. Two reports per second read them.
const maxRecords = 256

// recordLog holds the latest records of what the front end does beside migrations, for reports: rescues of
// streams that lost their engines, or prefix pulls. It is safe for concurrent use.
type recordLog struct {
	mu   sync.Mutex
	list []*api.Migration // oldest first; entries are not changed
}

// add appends a record.
func (x *recordLog) add(m *api.Migration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.list) == maxRecords {
		x.list = append([]*api.Migration(nil), x.list[1:]...)
	}
	x.list = append(x.list, m)
}

// all returns the records, oldest first. The result must not be changed.
func (x *recordLog) all() []*api.Migration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.list[:len(x.list):len(x.list)]
}

// encodeRescue converts a rescue of a stream of front to its form in reports.
func encodeRescue(r frontend.Rescue, front string) *api.Migration {
	m := &api.Migration{
		// The ids of migrations contain no "#", so that none equals this id.
		Id: fmt.Sprintf("%s#%d", r.Stream, r.Epoch), Request: r.Stream, Cause: "engine lost",
		FrontEnd: front, From: string(r.From), To: string(r.To), Method: "reprompt", State: "done", Tokens: int64(r.Length),
		StallSeconds: r.Duration.Seconds(), Seconds: r.Duration.Seconds(), StartedUnixMicros: r.Start.UnixMicro(),
	}
	if r.Err != nil {
		m.State, m.Reason = "aborted", r.Err.Error()
	}
	return m
}

// encodePull converts a prefix pull of replica self to its form in reports. No stream stalls for it: its
// request has not begun.
func encodePull(p frontend.PulledPrefix, self policies.ReplicaID, tokenBytes policies.Bytes) *api.Migration {
	m := &api.Migration{
		Id: fmt.Sprintf("%s/prefix#%x", self, rand.Uint64()), Request: p.Request, Cause: "prefix",
		FrontEnd: string(p.FrontEnd), From: string(p.Holder), To: string(self), Method: "live", Transport: p.Transport, State: "done",
		Rounds: 1, Tokens: int64(p.Tokens), Bytes: int64(p.Tokens) * int64(tokenBytes), Seconds: p.Duration.Seconds(), StartedUnixMicros: p.Start.UnixMicro(),
	}
	if p.Request == "" {
		m.Request = m.Id // a request without a name
	}
	if p.Handoff {
		m.Method = "handoff"
	}
	if p.Err != nil {
		m.State, m.Reason, m.Bytes = "aborted", p.Err.Error(), 0
	}
	return m
}

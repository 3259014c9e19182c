package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Service is how the clients of a model were served within the last minute.
type Service struct {
	loadreport.Service
	Refused uint64 // requests that were answered with 429
}

const (
	serviceWindow = time.Minute
	serviceSample = 5 * time.Second
)

// serviceMeter measures the service of one model. The zero value is ready for use.
type serviceMeter struct {
	counts window[Service]
	last   Service
}

// step measures the service. total counts since the start of this process.
func (m *serviceMeter) step(now time.Time, total Service) {
	first, _ := m.counts.add(now, total, serviceSample, serviceWindow, func(before Service) bool {
		return total.Failed < before.Failed || total.FirstToken.Total() < before.FirstToken.Total() || total.Refused < before.Refused
	})
	m.last = Service{total.Service.Since(first.Service), total.Refused - first.Refused}
}

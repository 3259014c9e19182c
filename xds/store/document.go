package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/internal/strictjson"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// MaxSize is the largest stored form of an object, in bytes: twenty times the size of
// 10,000 replicas with long names.
const MaxSize = 8 << 20

// document is the stored form of an object without its lease: JSON that operators can read.
// Unknown fields are refused, because a writer that ignored them would drop them. Plans stand
// for those of Object.
type document struct {
	Plans []planDocument `json:"plans,omitempty"`
	Object
	// PrefixDepths was written by versions that had prefix keys. It is read and dropped.
	PrefixDepths json.RawMessage `json:"prefix_depths,omitempty"`
}

type planDocument struct {
	Model  string          `json:"model"`
	Epoch  policies.Epoch  `json:"epoch"`
	Stages []stageDocument `json:"stages"`
}

type stageDocument struct {
	Low policies.Tokens `json:"low"`
	// High is missing in the last stage, which has no end.
	High     *policies.Tokens     `json:"high,omitempty"`
	Replicas []policies.ReplicaID `json:"replicas"`
}

// encode returns the stored form of an object, at most MaxSize bytes.
func encode(o Object) ([]byte, error) {
	d := document{Object: o.inUTC()}
	for _, p := range o.Plans {
		pd := planDocument{Model: p.Model, Epoch: p.Epoch}
		for _, s := range p.Stages {
			sd := stageDocument{Low: s.Low, Replicas: s.Replicas}
			if s.High != policies.Unbounded {
				sd.High = &s.High
			}
			pd.Stages = append(pd.Stages, sd)
		}
		d.Plans = append(d.Plans, pd)
	}
	body, err := json.Marshal(d)
	if err == nil && len(body) > MaxSize {
		err = fmt.Errorf("the object has %d bytes, at most %d are allowed", len(body), MaxSize)
	}
	return body, err
}

// decode returns the object of a stored form, which it does not validate.
func decode(body []byte) (Object, error) {
	var d document
	if err := strictjson.Unmarshal(body, &d); err != nil {
		return Object{}, err
	}
	o := d.Object.inUTC()
	for _, pd := range d.Plans {
		p := policies.Plan{Model: pd.Model, Epoch: pd.Epoch}
		for _, sd := range pd.Stages {
			s := policies.Stage{Low: sd.Low, High: policies.Unbounded, Replicas: sd.Replicas}
			if sd.High != nil {
				s.High = *sd.High
			}
			p.Stages = append(p.Stages, s)
		}
		o.Plans = append(o.Plans, p)
	}
	return o, nil
}

// inUTC returns the lease with its time in UTC, without a monotonic clock.
func (l Lease) inUTC() Lease { return Lease{l.Holder, l.Expires.UTC().Round(0)} }

// inUTC returns a copy whose times are in UTC, without a monotonic clock.
func (o Object) inUTC() Object {
	o = o.Clone()
	var times []*time.Time
	for i := range o.Reasons {
		times = append(times, &o.Reasons[i].At, &o.Reasons[i].Until)
	}
	for i := range o.Pins {
		times = append(times, &o.Pins[i].At)
	}
	for i := range o.Holds {
		times = append(times, &o.Holds[i].Until)
	}
	for _, s := range o.Slots {
		for _, m := range []*policyslots.Module{s.Stable, s.Previous} {
			if m != nil {
				times = append(times, &m.At)
			}
		}
		if t := s.Candidate; t != nil {
			times = append(times, &t.At, &t.Since)
		}
		for i := range s.Ended {
			times = append(times, &s.Ended[i].At)
		}
	}
	for _, t := range times {
		*t = t.UTC().Round(0)
	}
	return o
}

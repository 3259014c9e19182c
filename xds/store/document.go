package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// The stored form is JSON that operators can read and edit. Unknown fields and
// formats are refused, because a writer that ignored them would drop them.
const (
	format = 1
	// MaxSize is the largest stored form of an object, in bytes: twenty times the size of
	// 10,000 replicas with long names.
	MaxSize = 8 << 20
)

// ErrFormat says that a newer version wrote the stored object.
var ErrFormat = errors.New("the plan was written by a newer version")

// document is the stored form. Epoch and Plans stand for those of Object.
type document struct {
	Format   int            `json:"format"`
	Revision uint64         `json:"revision"` // grows by one with every write
	Epoch    policies.Epoch `json:"epoch"`
	Plans    []planDocument `json:"plans"`
	Object
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

// Encode returns the stored form of an object: JSON of at most MaxSize bytes. It refuses an
// invalid object. revision is a number that the store keeps with the object; a file's grows
// by one with every write. It is for implementations of Store.
func Encode(o Object, revision uint64) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := document{Format: format, Revision: revision, Epoch: o.Epoch, Plans: []planDocument{}, Object: o.inUTC()}
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
	body, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	if body = append(body, '\n'); len(body) > MaxSize {
		return nil, fmt.Errorf("the object has %d bytes, at most %d are allowed", len(body), MaxSize)
	}
	return body, nil
}

// Decode returns the object of a stored form, which an operator may have edited, and its
// revision. The error is ErrFormat (wrapped) if a newer version wrote it.
func Decode(body []byte) (o Object, revision uint64, err error) {
	// The format first: another one may have other fields.
	var head struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(body, &head) == nil && head.Format > format {
		return Object{}, 0, fmt.Errorf("%w: format %d, and this program reads up to %d: start a version that reads it", ErrFormat, head.Format, format)
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Object{}, 0, fmt.Errorf("byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Object{}, 0, fmt.Errorf("byte %d: more than one JSON object", dec.InputOffset())
	}
	if d.Format != format {
		return Object{}, 0, fmt.Errorf("format %d: must be %d", d.Format, format)
	}
	o = d.Object.inUTC()
	o.Epoch = d.Epoch
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
	if err := o.Validate(); err != nil {
		return Object{}, 0, err
	}
	return o, d.Revision, nil
}

// inUTC returns a copy whose times are in UTC, without a monotonic clock.
func (o Object) inUTC() Object {
	o = o.Clone()
	times := []*time.Time{&o.Lease.Expires}
	for i := range o.Reasons {
		times = append(times, &o.Reasons[i].At, &o.Reasons[i].Until)
	}
	for i := range o.Pins {
		times = append(times, &o.Pins[i].At)
	}
	for i := range o.Holds {
		times = append(times, &o.Holds[i].Until)
	}
	for i := range o.Refused {
		times = append(times, &o.Refused[i].At)
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

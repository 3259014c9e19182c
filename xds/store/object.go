package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Validate reports the first broken invariant, or nil.
func (o Object) Validate() error {
	if o.Epoch > MaxEpoch {
		return fmt.Errorf("epoch %d: give one up to %d", o.Epoch, uint64(MaxEpoch))
	}
	seen := make(map[string]bool, len(o.Plans))
	for _, p := range o.Plans {
		if err := p.Validate(); err != nil {
			return err
		}
		if seen[p.Model] {
			return fmt.Errorf("model %.60q has two plans", p.Model)
		}
		seen[p.Model] = true
		if p.Epoch > o.Epoch {
			return fmt.Errorf("plan of %.60q: epoch %d is beyond the object's, %d", p.Model, p.Epoch, o.Epoch)
		}
		if len(p.Model) > MaxText {
			return fmt.Errorf("plan of %.60q…: a name may have %d bytes", p.Model, MaxText)
		}
		for _, s := range p.Stages {
			for _, r := range s.Replicas {
				if r == "" || len(r) > MaxText {
					return fmt.Errorf("plan of %.60q: replica id %.60q must have 1 to %d bytes", p.Model, r, MaxText)
				}
			}
		}
	}
	for i, r := range o.Reasons {
		if len(r.Model) > MaxText || len(r.Text) > MaxText {
			return fmt.Errorf("reason %d: a text may have %d bytes", i, MaxText)
		}
	}
	drained := make(map[policies.ReplicaID]bool, len(o.Drained))
	for _, r := range o.Drained {
		if r == "" || len(r) > MaxText {
			return fmt.Errorf("drained: replica id %.60q must have 1 to %d bytes", r, MaxText)
		}
		if drained[r] {
			return fmt.Errorf("drained: replica %.60q is there twice", r)
		}
		drained[r] = true
	}
	if len(o.Lease.Holder) > MaxText {
		return fmt.Errorf("lease: a holder's name may have %d bytes", MaxText)
	}
	return nil
}

// clone returns a copy that shares nothing.
func (o Object) clone() Object {
	plans := o.Plans
	o.Plans = nil
	for _, p := range plans {
		stages := p.Stages
		p.Stages = nil
		for _, s := range stages {
			s.Replicas = append([]policies.ReplicaID(nil), s.Replicas...)
			p.Stages = append(p.Stages, s)
		}
		o.Plans = append(o.Plans, p)
	}
	o.Reasons = append([]Reason(nil), o.Reasons...)
	o.Drained = append([]policies.ReplicaID(nil), o.Drained...)
	return o
}

// The stored form: JSON that people can read and edit. Unknown fields and
// formats are refused, because a writer that ignored them would drop them.
const (
	format  = 1
	maxSize = 8 << 20 // 10,000 replicas with long names fit twenty times
)

type document struct {
	Format   int              `json:"format"`
	Revision uint64           `json:"revision"` // grows by one with every write
	Epoch    policies.Epoch   `json:"epoch"`
	Lease    *leaseDocument   `json:"lease,omitempty"`
	Plans    []planDocument   `json:"plans"`
	Reasons  []reasonDocument `json:"reasons,omitempty"`
	// Drained came later; an object without it drains nobody.
	Drained []policies.ReplicaID `json:"drained,omitempty"`
}

type leaseDocument struct {
	Holder  string    `json:"holder"`
	Expires time.Time `json:"expires"`
}

type planDocument struct {
	Model  string          `json:"model"`
	Epoch  policies.Epoch  `json:"epoch"`
	Stages []stageDocument `json:"stages"`
}

type stageDocument struct {
	Low policies.Tokens `json:"low"`
	// High is left out of the last stage, which has no end.
	High     *policies.Tokens     `json:"high,omitempty"`
	Replicas []policies.ReplicaID `json:"replicas"`
}

type reasonDocument struct {
	Model string         `json:"model"`
	Epoch policies.Epoch `json:"epoch"`
	At    time.Time      `json:"at"`
	Text  string         `json:"text"`
}

// encode renders a valid object.
func encode(o Object, revision uint64) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := document{Format: format, Revision: revision, Epoch: o.Epoch, Plans: []planDocument{}, Drained: o.Drained}
	if o.Lease != (Lease{}) {
		d.Lease = &leaseDocument{o.Lease.Holder, o.Lease.Expires.UTC()}
	}
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
	for _, r := range o.Reasons {
		d.Reasons = append(d.Reasons, reasonDocument{r.Model, r.Epoch, r.At.UTC(), r.Text})
	}
	body, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	if body = append(body, '\n'); len(body) > maxSize {
		return nil, fmt.Errorf("the object has %d bytes, more than %d", len(body), maxSize)
	}
	return body, nil
}

// decode reads what encode wrote, or what an operator made of it.
func decode(body []byte) (o Object, revision uint64, err error) {
	var d document
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return Object{}, 0, fmt.Errorf("byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Object{}, 0, fmt.Errorf("byte %d: more than one object", dec.InputOffset())
	}
	if d.Format != format {
		return Object{}, 0, fmt.Errorf("format %d; this program reads format %d", d.Format, format)
	}
	o.Epoch, o.Drained = d.Epoch, d.Drained
	if d.Lease != nil {
		o.Lease = Lease{d.Lease.Holder, d.Lease.Expires.UTC()}
	}
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
	for _, r := range d.Reasons {
		o.Reasons = append(o.Reasons, Reason{r.Model, r.Epoch, r.At.UTC(), r.Text})
	}
	if err := o.Validate(); err != nil {
		return Object{}, 0, err
	}
	return o, d.Revision, nil
}

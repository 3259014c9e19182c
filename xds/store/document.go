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

// The stored form is JSON that operators can read and edit. Unknown fields and
// formats are refused, because a writer that ignored them would drop them.
const (
	format  = 1
	maxSize = 8 << 20 // twenty times the size of 10,000 replicas with long names
)

type document struct {
	Format   int              `json:"format"`
	Revision uint64           `json:"revision"` // grows by one with every write
	Epoch    policies.Epoch   `json:"epoch"`
	Lease    *leaseDocument   `json:"lease,omitempty"`
	Plans    []planDocument   `json:"plans"`
	Reasons  []reasonDocument `json:"reasons,omitempty"`
	// The fields below may be missing: without them no replica is drained, no plan is
	// pinned, and so on.
	Drained     []policies.ReplicaID `json:"drained,omitempty"`
	Pins        []pinDocument        `json:"pins,omitempty"`
	Holds       []holdDocument       `json:"holds,omitempty"`
	FormerPlans []formerPlanDocument `json:"former_plans,omitempty"`
	Refused     []refusalDocument    `json:"refused,omitempty"`
	Weights     []weightDocument     `json:"weights,omitempty"`
	Unready     []policies.ReplicaID `json:"unready,omitempty"`
	Stopping    []policies.ReplicaID `json:"stopping,omitempty"`
	Ratios      []ratioDocument      `json:"bytes_per_token,omitempty"`
	Slots       []slotDocument       `json:"slots,omitempty"`
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
	// High is missing in the last stage, which has no end.
	High     *policies.Tokens     `json:"high,omitempty"`
	Replicas []policies.ReplicaID `json:"replicas"`
}

type reasonDocument struct {
	Model     string         `json:"model"`
	Epoch     policies.Epoch `json:"epoch"`
	At        time.Time      `json:"at"`
	Text      string         `json:"text"`
	Decision  string         `json:"decision,omitempty"`
	Gain      float64        `json:"gain,omitempty"`
	Predicted float64        `json:"predicted_seconds,omitempty"`
	Observed  float64        `json:"observed_seconds,omitempty"`
	By        string         `json:"by,omitempty"`
	Times     int            `json:"times,omitempty"`
	Until     *time.Time     `json:"until,omitempty"`
}

type pinDocument struct {
	formerPlanDocument
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

type holdDocument struct {
	Model string        `json:"model"`
	Until time.Time     `json:"until"`
	For   time.Duration `json:"for_nanoseconds"`
}

type formerPlanDocument struct {
	Model  string            `json:"model"`
	Epoch  policies.Epoch    `json:"epoch"`
	Cuts   []policies.Tokens `json:"cuts,omitempty"`
	Counts []int             `json:"counts"`
}

type refusalDocument struct {
	Type    string    `json:"type"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Node    string    `json:"node,omitempty"`
	Text    string    `json:"text,omitempty"`
	At      time.Time `json:"at"`
}

type weightDocument struct {
	Replica policies.ReplicaID `json:"replica"`
	Weight  uint32             `json:"weight"`
}

type ratioDocument struct {
	Model string `json:"model"`
	Milli int64  `json:"milli"`
}

// encode renders a valid object.
func encode(o Object, revision uint64) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := document{
		Format: format, Revision: revision, Epoch: o.Epoch, Plans: []planDocument{},
		Drained: o.Drained, Unready: o.Unready, Stopping: o.Stopping,
	}
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
	o.encodeRecords(&d)
	d.Slots = encodeSlots(o.Slots)
	body, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	if body = append(body, '\n'); len(body) > maxSize {
		return nil, fmt.Errorf("the object has %d bytes, at most %d are allowed", len(body), maxSize)
	}
	return body, nil
}

// decode decodes an object that encode wrote and that an operator may have edited.
func decode(body []byte) (o Object, revision uint64, err error) {
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
		return Object{}, 0, fmt.Errorf("format %d is not supported; this program reads format %d", d.Format, format)
	}
	o.Epoch, o.Drained, o.Unready, o.Stopping = d.Epoch, d.Drained, d.Unready, d.Stopping
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
	d.decodeRecords(&o)
	o.Slots = decodeSlots(d.Slots)
	if err := o.Validate(); err != nil {
		return Object{}, 0, err
	}
	return o, d.Revision, nil
}

// encodeRecords adds everything but the plans and slots to the document.
func (o Object) encodeRecords(d *document) {
	for _, r := range o.Reasons {
		rd := reasonDocument{
			Model: r.Model, Epoch: r.Epoch, At: r.At.UTC(), Text: r.Text, Decision: r.Decision,
			Gain: r.Gain, Predicted: r.Predicted, Observed: r.Observed, By: r.By, Times: r.Times,
		}
		if !r.Until.IsZero() {
			until := r.Until.UTC()
			rd.Until = &until
		}
		d.Reasons = append(d.Reasons, rd)
	}
	for _, p := range o.Pins {
		d.Pins = append(d.Pins, pinDocument{formerPlanDocument(p.FormerPlan), p.By, p.At.UTC()})
	}
	for _, h := range o.Holds {
		d.Holds = append(d.Holds, holdDocument{h.Model, h.Until.UTC(), h.For})
	}
	for _, p := range o.FormerPlans {
		d.FormerPlans = append(d.FormerPlans, formerPlanDocument(p))
	}
	for _, r := range o.Refused {
		r.At = r.At.UTC()
		d.Refused = append(d.Refused, refusalDocument(r))
	}
	for _, w := range o.Weights {
		d.Weights = append(d.Weights, weightDocument(w))
	}
	for _, r := range o.Ratios {
		d.Ratios = append(d.Ratios, ratioDocument(r))
	}
}

// decodeRecords is the inverse of encodeRecords.
func (d *document) decodeRecords(o *Object) {
	for _, rd := range d.Reasons {
		r := Reason{
			Model: rd.Model, Epoch: rd.Epoch, At: rd.At.UTC(), Text: rd.Text, Decision: rd.Decision,
			Gain: rd.Gain, Predicted: rd.Predicted, Observed: rd.Observed, By: rd.By, Times: rd.Times,
		}
		if rd.Until != nil {
			r.Until = rd.Until.UTC()
		}
		o.Reasons = append(o.Reasons, r)
	}
	for _, p := range d.Pins {
		o.Pins = append(o.Pins, Pin{FormerPlan(p.formerPlanDocument), p.By, p.At.UTC()})
	}
	for _, h := range d.Holds {
		o.Holds = append(o.Holds, Hold{h.Model, h.Until.UTC(), h.For})
	}
	for _, p := range d.FormerPlans {
		o.FormerPlans = append(o.FormerPlans, FormerPlan(p))
	}
	for _, r := range d.Refused {
		r.At = r.At.UTC()
		o.Refused = append(o.Refused, Refusal(r))
	}
	for _, w := range d.Weights {
		o.Weights = append(o.Weights, Weight(w))
	}
	for _, r := range d.Ratios {
		o.Ratios = append(o.Ratios, Ratio(r))
	}
}

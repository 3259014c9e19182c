package store

import (
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// The stored form of policy slots. Bytes are base64, digests hexadecimal.
type slotDocument struct {
	Kind      lifecycle.Kind       `json:"slot"`
	Stable    *moduleDocument      `json:"stable,omitempty"`
	Previous  *moduleDocument      `json:"previous,omitempty"`
	Candidate *trialDocument       `json:"candidate,omitempty"`
	Floor     lifecycle.Generation `json:"floor"`
	Ended     []endedDocument      `json:"rolled_back,omitempty"`
}

type moduleDocument struct {
	Generation    lifecycle.Generation `json:"generation"`
	Name          string               `json:"name"`
	Version       string               `json:"version,omitempty"`
	SHA256        lifecycle.Digest     `json:"sha256"`
	Size          int                  `json:"bytes"`
	Signature     []byte               `json:"signature"`
	Configuration []byte               `json:"configuration,omitempty"`
	Signers       []string             `json:"signers,omitempty"`
	By            string               `json:"by,omitempty"`
	At            time.Time            `json:"at"`
}

type trialDocument struct {
	moduleDocument
	Goal     lifecycle.Goal `json:"goal"`
	Permille int            `json:"permille,omitempty"`
	Scope    string         `json:"scope,omitempty"`
	Since    time.Time      `json:"since"`
}

type endedDocument struct {
	Generation lifecycle.Generation `json:"generation"`
	Name       string               `json:"name,omitempty"`
	Reason     string               `json:"reason,omitempty"`
	By         string               `json:"by,omitempty"`
	At         time.Time            `json:"at"`
}

func encodeSlots(list []policyslots.Slot) (out []slotDocument) {
	for _, s := range list {
		d := slotDocument{Kind: s.Kind, Stable: encodeModule(s.Stable), Previous: encodeModule(s.Previous), Floor: s.Floor}
		if t := s.Candidate; t != nil {
			d.Candidate = &trialDocument{*encodeModule(&t.Module), t.Goal, t.Permille, t.Scope, t.Since.UTC()}
		}
		for _, e := range s.Ended {
			e.At = e.At.UTC()
			d.Ended = append(d.Ended, endedDocument(e))
		}
		out = append(out, d)
	}
	return out
}

func encodeModule(m *policyslots.Module) *moduleDocument {
	if m == nil {
		return nil
	}
	return &moduleDocument{
		m.Generation, m.Name, m.Version, m.SHA256, m.Size, m.Signature, m.Configuration, m.Signers, m.By, m.At.UTC(),
	}
}

// decodeSlots is the inverse of encodeSlots.
func decodeSlots(list []slotDocument) (out []policyslots.Slot) {
	for _, d := range list {
		s := policyslots.Slot{Kind: d.Kind, Floor: d.Floor, Stable: d.Stable.decode(), Previous: d.Previous.decode()}
		if t := d.Candidate; t != nil {
			s.Candidate = &policyslots.Trial{Module: *t.moduleDocument.decode(), Goal: t.Goal, Permille: t.Permille, Scope: t.Scope, Since: t.Since.UTC()}
		}
		for _, e := range d.Ended {
			e.At = e.At.UTC()
			s.Ended = append(s.Ended, policyslots.Ended(e))
		}
		out = append(out, s)
	}
	return out
}

func (d *moduleDocument) decode() *policyslots.Module {
	if d == nil {
		return nil
	}
	return &policyslots.Module{
		Generation: d.Generation, Name: d.Name, Version: d.Version, SHA256: d.SHA256, Size: d.Size, Signature: d.Signature,
		Configuration: d.Configuration, Signers: d.Signers, By: d.By, At: d.At.UTC(),
	}
}

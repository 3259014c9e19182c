package store

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// The stored form of policy slots. Bytes are base64, digests hexadecimal.
type slotDocument struct {
	Kind      string          `json:"slot"`
	Proven    *moduleDocument `json:"proven,omitempty"`
	Previous  *moduleDocument `json:"previous,omitempty"`
	Candidate *trialDocument  `json:"candidate,omitempty"`
	Floor     uint64          `json:"floor"`
	Ended     []endedDocument `json:"rolled_back,omitempty"`
}

type moduleDocument struct {
	Generation    uint64    `json:"generation"`
	Name          string    `json:"name"`
	Version       string    `json:"version,omitempty"`
	SHA256        string    `json:"sha256"`
	Size          int       `json:"bytes"`
	Signature     []byte    `json:"signature"`
	Configuration []byte    `json:"configuration,omitempty"`
	Signers       []string  `json:"signers,omitempty"`
	By            string    `json:"by,omitempty"`
	At            time.Time `json:"at"`
}

type trialDocument struct {
	moduleDocument
	Goal     policyslots.Goal `json:"goal"`
	Permille int              `json:"permille,omitempty"`
	Scope    string           `json:"scope,omitempty"`
	Since    time.Time        `json:"since"`
}

type endedDocument struct {
	Generation uint64    `json:"generation"`
	Name       string    `json:"name,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	By         string    `json:"by,omitempty"`
	At         time.Time `json:"at"`
}

func encodeSlots(list []policyslots.Slot) (out []slotDocument) {
	for _, s := range list {
		d := slotDocument{Kind: s.Kind, Proven: encodeModule(s.Proven), Previous: encodeModule(s.Previous), Floor: s.Floor}
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
		m.Generation, m.Name, m.Version, m.SHA256.String(), m.Size, m.Signature, m.Configuration, m.Signers, m.By, m.At.UTC(),
	}
}

// decodeSlots is the inverse of encodeSlots. It checks the digests alone.
func decodeSlots(list []slotDocument) (out []policyslots.Slot, err error) {
	for _, d := range list {
		s := policyslots.Slot{Kind: d.Kind, Floor: d.Floor}
		if s.Proven, err = d.Proven.decode(); err == nil {
			s.Previous, err = d.Previous.decode()
		}
		if t := d.Candidate; t != nil && err == nil {
			var m *policyslots.Module
			if m, err = t.moduleDocument.decode(); err == nil {
				s.Candidate = &policyslots.Trial{Module: *m, Goal: t.Goal, Permille: t.Permille, Scope: t.Scope, Since: t.Since.UTC()}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("policies: slot %.40q: %w", d.Kind, err)
		}
		for _, e := range d.Ended {
			e.At = e.At.UTC()
			s.Ended = append(s.Ended, policyslots.Ended(e))
		}
		out = append(out, s)
	}
	return out, nil
}

func (d *moduleDocument) decode() (*policyslots.Module, error) {
	if d == nil {
		return nil, nil
	}
	m := &policyslots.Module{
		Generation: d.Generation, Name: d.Name, Version: d.Version, Size: d.Size, Signature: d.Signature,
		Configuration: d.Configuration, Signers: d.Signers, By: d.By, At: d.At.UTC(),
	}
	sum, err := hex.DecodeString(d.SHA256)
	if err != nil || len(sum) != len(m.SHA256) {
		return nil, fmt.Errorf("generation %d: sha256 %.80q: want %d digits", d.Generation, d.SHA256, 2*len(m.SHA256))
	}
	copy(m.SHA256[:], sum)
	return m, nil
}

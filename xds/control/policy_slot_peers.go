package control

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// nodePrefix begins the node names of control planes.
const nodePrefix = "control/"

// maxPeers bounds the other control planes that are read.
const maxPeers = 32

// slotPeers exchanges the state of policy slots between the control planes of a
// store: each writes a load report, as migrators send them, into its note and
// reads the notes of the others. The age of a report counts from when this
// control plane first read it, because clocks differ between hosts: a report
// that is read for the first time counts as new.
type slotPeers struct {
	notes store.Notes
	node  string // of this control plane
	log   *slog.Logger

	sequence  uint64 // owned by slotManager.run
	lastError string // last logged error; owned by slotManager.run

	mu  sync.Mutex
	all map[string]peerReport // by node
}

// peerReport is the note of another control plane.
type peerReport struct {
	text   []byte
	report policyslots.Report
}

func newSlotPeers(notes store.Notes, node string, log *slog.Logger) *slotPeers {
	return &slotPeers{notes: notes, node: node, log: log, all: make(map[string]peerReport)}
}

// exchange writes this control plane's report and reads those of the others.
func (p *slotPeers) exchange(now time.Time, own []*api.SlotStatus) {
	p.sequence++
	text, err := protojson.Marshal(&api.LoadReport{Replica: p.node, Sequence: p.sequence, Slots: own})
	if err == nil {
		err = p.notes.Put(p.node, text)
	}
	notes, problem := p.notes.All()
	p.logChange(cmp.Or(err, problem))
	next := make(map[string]peerReport)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range notes {
		report, err := parsePeerReport(text)
		if err != nil || report.Node == p.node || len(next) == maxPeers {
			continue
		}
		if report.At = now; bytes.Equal(p.all[report.Node].text, text) {
			report.At = p.all[report.Node].report.At
		}
		next[report.Node] = peerReport{text, report}
	}
	if problem == nil || len(notes) > 0 {
		p.all = next
	}
}

// parsePeerReport parses a note.
func parsePeerReport(text []byte) (policyslots.Report, error) {
	m := new(api.LoadReport)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, m); err != nil {
		return policyslots.Report{}, err
	}
	node := m.GetReplica()
	if !strings.HasPrefix(node, nodePrefix) || policyslots.Clip(node, policyslots.MaxName) != node {
		return policyslots.Report{}, fmt.Errorf("%.40q is not a control plane", node)
	}
	statuses, _ := policyslots.DecodeStatuses(m.GetSlots())
	return policyslots.Report{Node: node, Statuses: statuses}, nil
}

// logChange logs the first error of a row.
func (p *slotPeers) logChange(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && p.lastError == "" {
		p.log.Warn("control planes cannot exchange the state of their policy slots", "error", err)
	}
	p.lastError = text
}

// reports returns the reports of the others, sorted by node.
func (p *slotPeers) reports() []policyslots.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]policyslots.Report, 0, len(p.all))
	for _, one := range p.all {
		out = append(out, one.report)
	}
	slices.SortFunc(out, func(a, b policyslots.Report) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// removeOwn removes the own note, so that the others do not wait for a control
// plane that stops.
func (p *slotPeers) removeOwn() {
	if err := p.notes.Put(p.node, nil); err != nil {
		p.log.Debug("own note not removed", "error", err)
	}
}

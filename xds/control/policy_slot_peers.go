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

// nodePrefix begins the names of control planes among the nodes that have slots.
const nodePrefix = "control/"

// maxPeers bounds the control planes that are listened to.
const maxPeers = 32

// slotPeers is what the control planes of a store tell each other of their own slots:
// each leaves a report in its note, as migrators send theirs, and reads the others'.
// How old one is goes by the own clock since it changed, because machines' clocks
// differ: one that is read for the first time counts as new, and is waited for.
type slotPeers struct {
	notes store.Notes
	node  string // of this control plane
	log   *slog.Logger

	sequence  uint64 // owned by the keeper's loop
	lastError string // the last error that was logged; likewise

	mu  sync.Mutex
	all map[string]peerReport // by node
}

// peerReport is what is known of another control plane.
type peerReport struct {
	text   []byte
	report policyslots.Report
}

func newSlotPeers(notes store.Notes, node string, log *slog.Logger) *slotPeers {
	return &slotPeers{notes: notes, node: node, log: log, all: make(map[string]peerReport)}
}

// exchange leaves what this control plane says, and reads what the others do.
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

// parsePeerReport reads a note.
func parsePeerReport(text []byte) (policyslots.Report, error) {
	m := new(api.LoadReport)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, m); err != nil {
		return policyslots.Report{}, err
	}
	node := m.GetReplica()
	if !strings.HasPrefix(node, nodePrefix) || policyslots.Clip(node, policyslots.MaxName) != node {
		return policyslots.Report{}, fmt.Errorf("%.40q is no control plane", node)
	}
	statuses, _ := policyslots.ReadStatuses(m.GetSlots())
	return policyslots.Report{Node: node, Statuses: statuses}, nil
}

// logChange logs a trouble once.
func (p *slotPeers) logChange(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && p.lastError == "" {
		p.log.Warn("the control planes do not tell each other of their policies", "error", err)
	}
	p.lastError = text
}

// reports are the others' reports, sorted by node.
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

// removeOwn removes the own note: who stops is not waited for.
func (p *slotPeers) removeOwn() {
	if err := p.notes.Put(p.node, nil); err != nil {
		p.log.Debug("the note of this control plane stays", "error", err)
	}
}

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	// planeInterval is the time between two notes of a control plane.
	planeInterval = time.Second
	// planeLate is how old the last note of a control plane that works may be.
	planeLate = 3 * planeInterval
	// fileSettling is how long control planes may have read different fleet files: they
	// read a changed one at different times.
	fileSettling = 3 * time.Second
	// maxPlaneNodes bounds the proxies in a note.
	maxPlaneNodes = 256
)

// noNotes is the message of notes that cannot be exchanged.
const noNotes = "control planes cannot exchange notes through the store"

// nodePrefix begins the node names of control planes, and maxPeers bounds those that are read.
const (
	nodePrefix = "control/"
	maxPeers   = 32
)

// planeNote is what a control plane leaves for the others of its store, as JSON.
type planeNote struct {
	Name     string `json:"name"`
	Admin    string `json:"admin"` // host:port of its admin server
	Sequence uint64 `json:"sequence"`
	Leads    bool   `json:"leads"`
	Epoch    uint64 `json:"epoch"`
	// FleetDigest identifies the fleet file that is in force there, Replicas counts its
	// replicas.
	FleetDigest string `json:"fleet_digest"`
	Replicas    int    `json:"replicas"`
	// FleetFields are digests of the file's fields; absent in notes of earlier versions.
	FleetFields map[string]string `json:"fleet_fields,omitempty"`
	// FleetFault says why the newest file is not in force; absent: it is.
	FleetFault string `json:"fleet_fault,omitempty"`
	// Problems are what the process lacks.
	Problems []loadreport.Problem `json:"problems,omitempty"`
	Nodes    []Node               `json:"nodes,omitempty"` // connected there
	// Slots is a load report with the state of its policy slots, as migrators send it; absent: it has none.
	Slots json.RawMessage `json:"slots,omitempty"`

	statuses []lifecycle.SlotStatus // of Slots
}

// peerPlane is another control plane, as its notes describe it.
type peerPlane struct {
	text    []byte
	note    planeNote
	at      time.Time // when a new note was last read here: clocks differ between hosts
	differs time.Time // since when its fleet file differs; zero: it does not
}

// planeNotes exchanges notes between the control planes of a store. It also shows every
// second whether this one can write the store.
type planeNotes struct {
	store    *store.Store
	sequence uint64 // owned by Run
	logged   bool   // notes cannot be exchanged, which was logged; owned by Run

	mu    sync.Mutex
	all   map[string]peerPlane // by name, without this one
	fault error                // of the last exchange
	since time.Time            // when fault began
	file  fleetFile
}

// FleetFile describes the fleet file that is in force at a control plane.
type FleetFile struct {
	Digest string            // of the fields that control planes share
	Fields map[string]string // digests of its fields, such as planner.period
	// Restart lists the fields whose changes only a restart applies.
	Restart []string
}

// fleetFile is what this control plane last read of its fleet file.
type fleetFile struct {
	FleetFile
	refused string // why the last one is not in force; "": it is
	since   time.Time
}

// SetFleetFile records the fleet file in force, and why the file that was read last is refused; nil means that it is
// in force.
func (c *Control) SetFleetFile(file FleetFile, refused error) {
	n := c.planes
	n.mu.Lock()
	defer n.mu.Unlock()
	text := ""
	if refused != nil {
		text = refused.Error()
	}
	if text != n.file.refused || (len(file.Restart) > 0) != (len(n.file.Restart) > 0) {
		n.file.refused, n.file.since = text, time.Now()
	}
	if refused == nil {
		n.file.FleetFile = file
	}
}

// ownNote returns this control plane's note.
func (c *Control) ownNote() planeNote {
	c.planes.mu.Lock()
	note := planeNote{Name: c.cfg.Name, Admin: c.AdminAddr().String(), FleetDigest: c.planes.file.Digest, FleetFields: c.planes.file.Fields, FleetFault: c.planes.file.refused}
	c.planes.mu.Unlock()
	if s := c.fleet.Snapshot(); s != nil {
		note.Leads, note.Epoch = s.Leadership.Leading, uint64(s.Epoch)
		for _, m := range s.Models {
			note.Replicas += len(m.Replicas)
		}
		if s.Held != nil {
			note.FleetFault = cmp.Or(note.FleetFault, "it removes "+s.Held.Text)
		}
	}
	if c.cfg.Problems != nil {
		note.Problems = c.cfg.Problems()
	}
	for _, n := range c.observe().published.Nodes {
		if n.Connected && !n.Observer && len(note.Nodes) < maxPlaneNodes {
			note.Nodes = append(note.Nodes, n)
		}
	}
	if c.cfg.Slots != nil {
		if text, err := protojson.Marshal(&api.LoadReport{Slots: c.slots.ownStatus()}); err == nil {
			note.Slots = text
		}
	}
	return note
}

// runPlanes writes a note and reads those of the others once a second, until ctx ends.
func (c *Control) runPlanes(ctx context.Context) error {
	n := c.planes
	tick := time.NewTicker(planeInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		n.sequence++
		note := c.ownNote()
		note.Sequence = n.sequence
		if err := n.exchange(ctx, note); ctx.Err() == nil {
			c.logNotes(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	// The others then know that it has stopped.
	if err := n.store.PutNote(context.WithoutCancel(ctx), c.cfg.Name, nil); err != nil {
		c.log.Debug("own note not removed", "error", err)
	}
	return nil
}

// logNotes logs that notes cannot be exchanged, and that they can again.
func (c *Control) logNotes(fault error) {
	n := c.planes
	switch {
	case fault != nil && !n.logged:
		c.log.Error(noNotes, "error", fault)
	case fault == nil && n.logged:
		c.log.Warn("control planes exchange notes again")
	}
	n.logged = fault != nil
}

// exchange writes a note and reads the others.
func (n *planeNotes) exchange(ctx context.Context, own planeNote) error {
	text, err := json.Marshal(own)
	if err == nil {
		err = n.store.PutNote(ctx, own.Name, text)
	}
	notes, problem := n.store.AllNotes(ctx, time.Now())
	err = cmp.Or(err, problem)
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil && n.fault == nil {
		n.since = now
	}
	if n.fault = err; problem != nil {
		return err // what could not be read is as it was, and gets late
	}
	next := make(map[string]peerPlane)
	for _, text := range notes {
		note, err := parsePlaneNote(text)
		if err != nil || note.Name == own.Name || len(next) == maxPeers {
			continue
		}
		p := n.all[note.Name]
		if !bytes.Equal(p.text, text) {
			p.text, p.note, p.at = text, note, now
		}
		if note.FleetDigest == own.FleetDigest {
			p.differs = time.Time{}
		} else if p.differs.IsZero() {
			p.differs = now
		}
		next[note.Name] = p
	}
	n.all = next
	return err
}

// parsePlaneNote decodes a note, which any process that writes the directory may have
// written.
func parsePlaneNote(text []byte) (planeNote, error) {
	var note planeNote
	if err := json.Unmarshal(text, &note); err != nil {
		return planeNote{}, err
	}
	if note.Name == "" || cleantext.Printable(note.Name, policyslots.MaxName) != note.Name || len(note.Nodes) > maxPlaneNodes {
		return planeNote{}, fmt.Errorf("not a note of a control plane")
	}
	note.Problems = boundProblems(note.Problems)
	note.FleetFault = cleantext.Printable(note.FleetFault, policyslots.MaxName)
	if slots := new(api.LoadReport); len(note.Slots) > 0 {
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(note.Slots, slots); err != nil {
			return planeNote{}, err
		}
		note.statuses, _ = policyslots.DecodeStatuses(slots.GetSlots())
	}
	for i := range note.Nodes {
		note.Nodes[i].Problems = boundProblems(note.Nodes[i].Problems)
		note.Nodes[i].Connected, note.Nodes[i].Plane = true, note.Name
	}
	return note, nil
}

// boundProblems returns problems as a daemon may report them.
func boundProblems(list []loadreport.Problem) (out []loadreport.Problem) {
	for _, p := range list[:min(len(list), loadreport.MaxProblems)] {
		out = append(out, loadreport.NewProblem(p.Kind, p.Text))
	}
	return out
}

// peers returns the other control planes, sorted by name.
func (n *planeNotes) peers() []peerPlane {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]peerPlane, 0, len(n.all))
	for _, p := range n.all {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b peerPlane) int { return cmp.Compare(a.note.Name, b.note.Name) })
	return out
}

// slotReports returns the state of the others' policy slots, sorted by name.
func (n *planeNotes) slotReports() (out []policyslots.Report) {
	for _, p := range n.peers() {
		if len(p.note.Slots) > 0 {
			out = append(out, policyslots.Report{Node: nodePrefix + p.note.Name, At: p.at, Statuses: p.note.statuses})
		}
	}
	return out
}

// Plane is another control plane of a Status, as its last note describes it.
type Plane struct {
	Name  string  `json:"name"`
	Admin string  `json:"admin"` // host:port of its admin server, on its host
	Age   float64 `json:"age_seconds"`
	Leads bool    `json:"leads"`
	Epoch uint64  `json:"epoch"`
	// Replicas counts the replicas of its fleet file, SameFile says that the file is the
	// one of the control plane that answers.
	Replicas int  `json:"replicas"`
	SameFile bool `json:"same_file"`
	// Nodes counts the proxies that are connected to it.
	Nodes int `json:"nodes"`
}

// addPlanes adds to a status what the other control planes have noted: themselves, and
// the proxies that are connected to them.
func (n *planeNotes) addPlanes(out *Status, now time.Time) {
	for _, p := range n.peers() {
		out.Planes = append(out.Planes, Plane{
			Name: p.note.Name, Admin: p.note.Admin, Age: now.Sub(p.at).Seconds(), Leads: p.note.Leads, Epoch: p.note.Epoch,
			Replicas: p.note.Replicas, SameFile: p.differs.IsZero(), Nodes: len(p.note.Nodes),
		})
		if now.Sub(p.at) >= planeLate {
			continue
		}
		for _, node := range p.note.Nodes {
			i := slices.IndexFunc(out.Nodes, func(own Node) bool { return own.ID == node.ID })
			if i < 0 {
				out.Nodes = append(out.Nodes, node)
			} else if !out.Nodes[i].Connected {
				out.Nodes[i] = node
			}
		}
	}
}

// faults lists what the notes and the fleet file show.
func (n *planeNotes) faults(now time.Time) (out []Fault) {
	n.mu.Lock()
	if n.file.refused != "" {
		out = append(out, Fault{Kind: FaultFile, Object: "refused", Text: "the last valid fleet file stays in force: " + n.file.refused, Seconds: now.Sub(n.file.since).Seconds()})
	}
	if len(n.file.Restart) > 0 {
		out = append(out, Fault{Kind: FaultFile, Object: "restart", Seconds: now.Sub(n.file.since).Seconds(),
			Text: "changes of the fleet file that only a restart applies: " + fieldNames(n.file.Restart) + "; restart the control planes, and the daemons that read them"})
	}
	own := n.file.Fields
	if n.fault != nil {
		out = append(out, Fault{Kind: FaultStore, Object: "notes", Seconds: now.Sub(n.since).Seconds(), Text: noNotes + ": " + n.fault.Error()})
	}
	n.mu.Unlock()
	for _, p := range n.peers() {
		switch late := now.Sub(p.at); {
		case late >= planeLate:
			out = append(out, Fault{Kind: FaultPlane, Object: p.note.Name, Text: "the control plane has written no note: it has died, hangs, or cannot write the store", Seconds: late.Seconds()})
			continue
		case p.note.FleetFault != "":
			out = append(out, Fault{Kind: FaultFile, Object: p.note.Name, Text: "the control plane does not apply its newest fleet file: " + p.note.FleetFault})
		}
		out = append(out, problemFaults("control "+p.note.Name, p.note.Problems)...)
		for _, node := range p.note.Nodes {
			out = append(out, problemFaults("proxy "+node.ID, node.Problems)...)
		}
		if !p.differs.IsZero() && now.Sub(p.differs) >= fileSettling {
			out = append(out, Fault{
				Kind: FaultFileDiffers, Object: p.note.Name, Seconds: now.Sub(p.differs).Seconds(),
				Text: fmt.Sprintf("the control plane has another fleet file in force, with %d replicas%s: give all control planes the same file", p.note.Replicas, differentFields(own, p.note.FleetFields)),
			})
		}
	}
	return out
}

// differentFields names the fields in which two files differ, as a part of a sentence; "" if that is not known.
func differentFields(own, other map[string]string) string {
	if len(own) == 0 || len(other) == 0 {
		return ""
	}
	return "; these fields differ: " + fieldNames(DifferentFields(own, other))
}

// DifferentFields lists the fields whose digests differ, sorted.
func DifferentFields(a, b map[string]string) (names []string) {
	all := maps.Clone(a)
	maps.Copy(all, b)
	for name := range all {
		if a[name] != b[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// fieldNames joins the first shownFields names, and counts the others.
func fieldNames(names []string) string {
	if more := len(names) - shownFields; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownFields], ", "), more)
	}
	return strings.Join(names, ", ")
}

// shownFields is how many fields a fault names.
const shownFields = 8

// fleetFileOf describes the file of a configuration, which may have none.
func fleetFileOf(c Config) FleetFile {
	out := c.FleetFile
	out.Digest = cmp.Or(out.Digest, fleet.DigestReplicas(c.Replicas))
	return out
}

// PlaneAdmins returns the admin addresses in notes of control planes.
func PlaneAdmins(notes [][]byte) (admins []string) {
	for _, text := range notes {
		if note, err := parsePlaneNote(text); err == nil && checkLoopback(note.Admin) == nil {
			admins = append(admins, note.Admin)
		}
	}
	slices.Sort(admins)
	return slices.Compact(admins)
}

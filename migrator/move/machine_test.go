package move

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestConfigIsChecked checks that the error names the invalid field.
func TestConfigIsChecked(t *testing.T) {
	const ms = policies.Millisecond
	for _, c := range []struct {
		config Limits
		want   string
	}{
		{Limits{}, "Self"},
		{Limits{Self: "a"}, ""},
		{Limits{Self: "a", PeerTimeout: 200 * ms}, ""},
		{Limits{Self: "a", PeerTimeout: 200*ms - 1}, "PeerTimeout"},
		{Limits{Self: "a", ReadyTimeout: -1}, "ReadyTimeout"},
		{Limits{Self: "a", ReadyTimeout: 120_000 * ms}, ""},
		{Limits{Self: "a", ReadyTimeout: 120_000*ms + 1}, "ReadyTimeout"},
		{Limits{Self: "a", FreezeTimeout: -1}, "FreezeTimeout"},
		{Limits{Self: "a", CommitTimeout: -1}, "CommitTimeout"},
		{Limits{Self: "a", TailBlocks: -1}, "TailBlocks"},
	} {
		_, err := newMachine(c.config)
		testkit.WantError(t, err, c.want)
	}
}

// TestIdle checks that a machine with an export and a commit is not idle, and that Step
// keeps the actions that it is given.
func TestIdle(t *testing.T) {
	m := testkit.Must(newMachine(Limits{Self: "a"}))
	if !m.Idle() {
		t.Error("a new machine is not idle")
	}
	before := []Action{{Kind: Thaw}}
	request := Request{ID: "q", FrontEnd: "a", Length: 20}
	own := bidask.Deal{Seller: "a", Number: 1}
	out := m.Step(Event{Kind: ExportStarted, Deal: own, Peer: "b", Request: request}, before)
	if len(out) < 1 || out[0].Kind != Thaw || m.Idle() {
		t.Errorf("%+v, idle %v", out, m.Idle())
	}
	m.Step(Event{Kind: Received, Message: Message{Kind: Commit, From: "b", To: "a", Deal: bidask.Deal{Seller: "b", Number: 1}, Request: "r"}}, nil)
	if m.Idle() {
		t.Error("idle with an export and a commit")
	}
	m.Step(Event{Kind: ImportStarted, Deal: bidask.Deal{Seller: "c", Number: 1}, Peer: "c"}, nil)
	if m.Idle() {
		t.Error("idle with one of each")
	}
	m.Step(Event{Kind: AbortRequested, Deal: own}, nil)
	if m.Idle() {
		t.Error("idle with an import and a commit")
	}
	for _, msg := range []Message{{From: "b", To: "z"}, {To: "a"}} {
		msg.Kind, msg.Deal = Open, bidask.Deal{Seller: "a", Number: 9}
		if out := m.Step(Event{Kind: Received, Message: msg}, nil); len(out) > 0 {
			t.Errorf("a message from %q to %q causes %+v", msg.From, msg.To, out)
		}
	}
}

// TestNames checks the names of what does not exist.
func TestNames(t *testing.T) {
	if got := ActionKind(0).String() + ActionKind(200).String() + Failure(0).String() + Failure(200).String(); got != "unknownunknownunknownunknown" {
		t.Error(got)
	}
	if got := Send.String() + " " + HeldElsewhere.String(); got != "send held elsewhere" {
		t.Error(got)
	}
}

package transfer_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestConfigIsChecked checks that the error names the invalid field.
func TestConfigIsChecked(t *testing.T) {
	const ms = policies.Millisecond
	for _, c := range []struct {
		config transfer.Config
		want   string
	}{
		{transfer.Config{}, "Self"},
		{transfer.Config{Self: "a"}, ""},
		{transfer.Config{Self: "a", PeerTimeout: 200 * ms}, ""},
		{transfer.Config{Self: "a", PeerTimeout: 200*ms - 1}, "PeerTimeout"},
		{transfer.Config{Self: "a", ReadyTimeout: -1}, "ReadyTimeout"},
		{transfer.Config{Self: "a", ReadyTimeout: 120_000 * ms}, ""},
		{transfer.Config{Self: "a", ReadyTimeout: 120_000*ms + 1}, "ReadyTimeout"},
		{transfer.Config{Self: "a", FreezeTimeout: -1}, "FreezeTimeout"},
		{transfer.Config{Self: "a", CommitTimeout: -1}, "CommitTimeout"},
		{transfer.Config{Self: "a", TailBlocks: -1}, "TailBlocks"},
	} {
		_, err := transfer.New(c.config)
		testkit.WantError(t, err, c.want)
	}
}

// TestIdle checks that a machine with an export and a commit is not idle, and that Step
// keeps the actions that it is given.
func TestIdle(t *testing.T) {
	m := testkit.Must(transfer.New(transfer.Config{Self: "a"}))
	if !m.Idle() {
		t.Error("a new machine is not idle")
	}
	before := []transfer.Action{{Kind: transfer.Thaw}}
	request := transfer.Request{ID: "q", FrontEnd: "a", Length: 20}
	own := bidask.Deal{Seller: "a", Number: 1}
	out := m.Step(transfer.Event{Kind: transfer.ExportStarted, Deal: own, Peer: "b", Request: request}, before)
	if len(out) < 1 || out[0].Kind != transfer.Thaw || m.Idle() {
		t.Errorf("%+v, idle %v", out, m.Idle())
	}
	m.Step(transfer.Event{Kind: transfer.Received, Message: transfer.Message{Kind: transfer.Commit, From: "b", To: "a", Deal: bidask.Deal{Seller: "b", Number: 1}, Request: "r"}}, nil)
	if m.Idle() {
		t.Error("idle with an export and a commit")
	}
	m.Step(transfer.Event{Kind: transfer.ImportStarted, Deal: bidask.Deal{Seller: "c", Number: 1}, Peer: "c"}, nil)
	if m.Idle() {
		t.Error("idle with one of each")
	}
	m.Step(transfer.Event{Kind: transfer.AbortRequested, Deal: own}, nil)
	if m.Idle() {
		t.Error("idle with an import and a commit")
	}
	for _, msg := range []transfer.Message{{From: "b", To: "z"}, {To: "a"}} {
		msg.Kind, msg.Deal = transfer.Open, bidask.Deal{Seller: "a", Number: 9}
		if out := m.Step(transfer.Event{Kind: transfer.Received, Message: msg}, nil); len(out) > 0 {
			t.Errorf("a message from %q to %q causes %+v", msg.From, msg.To, out)
		}
	}
}

// TestNames checks the names of what does not exist.
func TestNames(t *testing.T) {
	if got := transfer.ActionKind(0).String() + transfer.ActionKind(200).String() + transfer.Failure(0).String() + transfer.Failure(200).String(); got != "unknownunknownunknownunknown" {
		t.Error(got)
	}
	if got := transfer.Send.String() + " " + transfer.HeldElsewhere.String(); got != "send held elsewhere" {
		t.Error(got)
	}
}

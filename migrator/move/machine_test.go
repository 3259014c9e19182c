package move

import (
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/policies/bidask"
)

// TestStrayMessages checks that messages to another replica, and from none, do nothing.
func TestStrayMessages(t *testing.T) {
	m := newMachine(Limits{Self: "a"})
	for _, msg := range []Message{{From: "b", To: "z"}, {To: "a"}} {
		msg.Kind, msg.Deal = Open, bidask.Deal{Seller: "a", Number: 9}
		if out := m.Step(Event{Kind: Received, Message: msg}); len(out) > 0 {
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

// TestAdoptionsOutsideAdopt executes answers to an adoption that no call of Adopt waits for: Run's
// goroutine goes on.
func TestAdoptionsOutsideAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Executor{records: newRecords(Config{})}
		for _, k := range []ActionKind{AllowAdopt, DenyAdopt} {
			m.execute(Action{Kind: k})
		}
	})
}

package move

import "testing"

// TestNames checks the names of what does not exist.
func TestNames(t *testing.T) {
	if got := ActionKind(0).String() + ActionKind(200).String() + Failure(0).String() + Failure(200).String(); got != "unknownunknownunknownunknown" {
		t.Error(got)
	}
	if got := Send.String() + " " + HeldElsewhere.String(); got != "send held elsewhere" {
		t.Error(got)
	}
}

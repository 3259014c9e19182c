package store

import (
	"strings"
	"testing"
	"time"
)

// TestMissingFields checks that an object without pins, weights and refusals is decoded
// as one with empty lists.
func TestMissingFields(t *testing.T) {
	o, revision, err := Decode([]byte(`{
  "format": 1, "revision": 7, "epoch": 3,
  "lease": {"holder": "a", "expires": "2026-01-02T03:04:05Z"},
  "plans": [{"model": "m", "epoch": 3, "stages": [{"low": 0, "high": 100, "replicas": ["r0"]}, {"low": 100, "replicas": ["r1"]}]}],
  "reasons": [{"model": "m", "epoch": 3, "at": "2026-01-02T03:04:05Z", "text": "better plan"}],
  "drained": ["r9"]
}`))
	if err != nil || revision != 7 || o.Epoch != 3 || len(o.Plans) != 1 || len(o.Drained) != 1 || o.Reasons[0].Text != "better plan" {
		t.Fatalf("%+v, revision %d, %v", o, revision, err)
	}
	if o.Pins != nil || o.Holds != nil || o.FormerPlans != nil || o.Refused != nil || o.Weights != nil || o.Unready != nil || o.Ratios != nil || o.Slots != nil {
		t.Errorf("%+v", o)
	}
	// An object without these fields is written as before.
	body, err := Encode(Object{Epoch: 3}, 7)
	if want := "{\n  \"format\": 1,\n  \"revision\": 7,\n  \"epoch\": 3,\n  \"plans\": []\n}\n"; err != nil || string(body) != want {
		t.Errorf("%s, %v", body, err)
	}
	// Times are written in UTC, whichever zone they come in.
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	body, err = Encode(Object{Epoch: 1, Pins: []Pin{{FormerPlan: FormerPlan{Model: "m", Counts: []int{1}}, At: at}}}, 1)
	if err != nil || !strings.Contains(string(body), `"at": "2026-01-02T02:04:05Z"`) {
		t.Errorf("%s, %v", body, err)
	}
}

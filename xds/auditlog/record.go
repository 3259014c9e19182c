package auditlog

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Record is one line: who did what, from where, to what, and what became of it.
type Record struct {
	Time time.Time `json:"time"` // UTC; Log.Record fills in the present one
	// Control is the control plane that writes: several may share a file. Log.Record fills it in.
	Control string `json:"control,omitempty"`
	// Action is one of the kinds below, or an order by its path: "drain", "plan/pin".
	Action string `json:"action"`
	// Object is what the action is about, such as "replica=r0", a model, or a slot and a generation.
	Object  string  `json:"object,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Reason is why it was done or refused.
	Reason string `json:"reason,omitempty"`
	// Who is the identity that was proved: a certificate's, or the user of a local process,
	// "user ops (1001)". By is the name that an operator gave with an order, which proves nothing.
	Who string `json:"who,omitempty"`
	By  string `json:"by,omitempty"`
	// From is the address of the client.
	From string `json:"from,omitempty"`
}

// The actions that are no orders.
const (
	PlanChange   = "plan"          // a plan came into force
	Promotion    = "promotion"     // a module became stable, or was rolled back, by the hosts' results
	Client       = "client"        // a client was refused because of its certificate
	Stream       = "stream"        // an xDS stream was refused because of a limit, or an invalid request
	ModuleOnHost = "module"        // a host refuses the module of a slot
	ProxyRefusal = "configuration" // a proxy refuses a resource
)

// Outcome is what became of an action.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // by a rule: it may not be done
	Failed  Outcome = "failed"  // by a fault: it could not be done
)

// maxText bounds each text of a record, in bytes.
const maxText = 1024

// bounded returns the record with texts of bounded length that a terminal can show.
func (r Record) bounded() Record {
	for _, text := range []*string{&r.Control, &r.Action, &r.Object, &r.Reason, &r.Who, &r.By, &r.From} {
		*text = clean(*text)
	}
	r.Outcome = Outcome(clean(string(r.Outcome)))
	return r
}

// line returns the record as one line of JSON, whatever its texts contain.
func (r Record) line() []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out) // which ends the line
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		panic("internal error: encode an audit record: " + err.Error())
	}
	return out.Bytes()
}

// clean returns the beginning of a text without characters that cannot be printed. White space is kept: JSON
// escapes it.
func clean(text string) string {
	if len(text) > maxText {
		end := maxText
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\r' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

package opa

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The entry points: sets of findings about a plan that replaces another, and about a policy
// that advances in a slot.
const (
	PlanDeny = "cascade/plan/deny"
	PlanWarn = "cascade/plan/warn"
	SlotDeny = "cascade/slot/deny"
	SlotWarn = "cascade/slot/warn"
)

// MaxFindings bounds the findings of one set. More are an error.
const MaxFindings = 64

// Writer writes the JSON input of rules about a plan: equal changes give equal bytes. The zero value is ready to use. It is not safe for concurrent
// use.
type Writer struct {
	text []byte
	home map[policies.ReplicaID]policies.Stage
}

// Input writes a change of plan at a time, in Unix seconds:
//
//	{"model": "llama", "now": 1763721600, "moves": 2,
//	 "before": {"epoch": 7, "stages": [{"low": 0, "high": 4096, "replicas": ["a"]},
//	                                   {"low": 4096, "replicas": ["b", "c"]}]},
//	 "after": {…}}
//
// A stage without "high" has no upper bound. "moves" is the number of replicas whose
// range changes (adoption.CountMoves). "before" has no stages if there is no plan yet.
// Invalid UTF-8 in a name becomes U+FFFD.
//
// The returned bytes are valid until the next call, which reuses their memory.
func (w *Writer) Input(c abi.Change, now int64) []byte {
	if w.home == nil {
		w.home = map[policies.ReplicaID]policies.Stage{}
	}
	b := append(w.text[:0], `{"model":`...)
	b = quote(b, c.Next.Model)
	b = append(b, `,"now":`...)
	b = strconv.AppendInt(b, now, 10)
	b = append(b, `,"moves":`...)
	b = strconv.AppendInt(b, int64(adoption.CountMovesIn(w.home, c.Now, c.Next)), 10)
	clear(w.home) // the names may share memory that the caller reuses
	b = append(b, `,"before":`...)
	b = plan(b, c.Now)
	b = append(b, `,"after":`...)
	b = plan(b, c.Next)
	w.text = append(b, '}')
	return w.text
}

func plan(b []byte, p policies.Plan) []byte {
	b = append(b, `{"epoch":`...)
	b = strconv.AppendUint(b, uint64(p.Epoch), 10)
	b = append(b, `,"stages":[`...)
	for i, s := range p.Stages {
		b = comma(b, i)
		b = append(b, `{"low":`...)
		b = strconv.AppendInt(b, int64(s.Low), 10)
		if s.High != policies.Unbounded {
			b = append(b, `,"high":`...)
			b = strconv.AppendInt(b, int64(s.High), 10)
		}
		b = append(b, `,"replicas":[`...)
		for k, id := range s.Replicas {
			b = quote(comma(b, k), string(id))
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

const hex = "0123456789abcdef"

// quote appends a JSON string.
func quote(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		case c < utf8.RuneSelf:
			b = append(b, c)
			i++
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
		}
	}
	return append(b, '"')
}

// ErrNoAnswer means that the rules have no such set, or that it is undefined for the
// input.
var ErrNoAnswer = errors.New("the rules have no answer")

// Results reads the answer of a module's entry point: [{"result": findings}]. It does not
// allocate for an answer without findings.
func Results(text []byte) ([]abi.Denial, error) {
	if string(text) == `[{"result":[]}]` {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var results []struct {
		Result any `json:"result"`
	}
	if err := d.Decode(&results); err != nil {
		return nil, fmt.Errorf("the answer: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("the answer has something behind its end")
	}
	if len(results) != 1 {
		return nil, ErrNoAnswer
	}
	return Findings(results[0].Result)
}

// Findings reads a set of {"code": number, "stage": number, "detail": string}, as
// encoding/json decodes it with UseNumber. Stage and detail may be missing. The findings
// are sorted by code, stage and detail.
func Findings(x any) ([]abi.Denial, error) {
	set, ok := x.([]any)
	if !ok {
		return nil, fmt.Errorf("the answer is a %T, not a set", x)
	}
	if len(set) > MaxFindings {
		return nil, fmt.Errorf("%d findings, the limit is %d", len(set), MaxFindings)
	}
	out := make([]abi.Denial, 0, len(set))
	for _, x := range set {
		d, err := finding(x)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b abi.Denial) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Detail, b.Detail))
	})
	return out, nil
}

// finding reads one element of a set.
func finding(x any) (abi.Denial, error) {
	object, ok := x.(map[string]any)
	if !ok {
		return abi.Denial{}, fmt.Errorf(`the finding %.100q is not an object with a "code"`, fmt.Sprint(x))
	}
	code, err := whole(object["code"], 0, math.MaxUint32)
	if err != nil {
		return abi.Denial{}, fmt.Errorf(`a finding's "code": %w`, err)
	}
	d := abi.Denial{Code: uint32(code), Stage: -1}
	if stage, there := object["stage"]; there {
		n, err := whole(stage, -1, policies.MaxStages-1)
		if err != nil {
			return abi.Denial{}, fmt.Errorf(`a finding's "stage": %w`, err)
		}
		d.Stage = int(n)
	}
	if detail, there := object["detail"]; there {
		text, ok := detail.(string)
		if !ok {
			return abi.Denial{}, fmt.Errorf(`a finding's "detail" is a %T, not a string`, detail)
		}
		d.Detail = text[:min(len(text), abi.MaxDetail)]
	}
	return d, nil
}

// whole reads a whole number from low to high.
func whole(x any, low, high int64) (int64, error) {
	n, ok := x.(json.Number)
	if !ok {
		return 0, fmt.Errorf("a %T, not a number", x)
	}
	i, err := n.Int64()
	if err != nil || i < low || i > high {
		return 0, fmt.Errorf("%.40s is not a whole number from %d to %d", n, low, high)
	}
	return i, nil
}

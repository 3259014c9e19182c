package calllog

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/cascadeinfer/cascade/internal/strictjson"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// Format is in the first line of a call log. Each further line is a call, with its
// answer if it is known.
const Format = "cascade-policy-frames/1"

// Limits of a call log.
const (
	Max     = 1 << 20 // calls
	maxLine = 4 << 20 // bytes; the largest frames are partitions', 1 MiB
)

type head struct {
	Format string `json:"format"`
	// Fuel is the version of the fuel counts: host.Version.
	Fuel string `json:"fuel,omitempty"`
}

// Call is the frame of a call and its answer.
type Call struct {
	Frame []byte
	// Answer is nil when it is not known.
	Answer *host.Record
	// FuelComparable is false when the answer's fuel was counted by another version
	// than this host's.
	FuelComparable bool
}

// FromRecords returns the calls that a host of this version has recorded. It shares
// the records.
func FromRecords(records []host.Record) []Call {
	frames := make([]Call, len(records))
	for n := range records {
		frames[n] = Call{records[n].Frame, &records[n], true}
	}
	return frames
}

type line struct {
	Kind   string `json:"kind"`
	Frame  []byte `json:"frame"`
	Result string `json:"result,omitempty"`
	Output []byte `json:"output,omitempty"`
	Module string `json:"module,omitempty"`
	Fuel   int64  `json:"fuel,omitempty"`
	Cause  string `json:"cause,omitempty"`
}

// Read reads a call log. The error names the line.
func Read(r io.Reader) ([]Call, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var first head
	if !lines.Scan() || strictjson.Unmarshal(lines.Bytes(), &first) != nil || first.Format != Format {
		return nil, errors.Join(fmt.Errorf("line 1: must be {\"format\": %q}: this is not a call log", Format), lines.Err())
	}
	var frames []Call
	for n := 2; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if len(frames) == Max {
			return nil, fmt.Errorf("line %d: more than %d frames: split the file", n, Max)
		}
		var l line
		err := strictjson.Unmarshal(lines.Bytes(), &l)
		var f Call
		if err == nil {
			f, err = l.read()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		f.FuelComparable = first.Fuel == host.Version
		frames = append(frames, f)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(frames)+2, err)
	}
	return frames, nil
}

func (l line) read() (Call, error) {
	f := Call{Frame: l.Frame}
	k := abi.KindOf(l.Frame)
	if k == abi.NumKinds || k == abi.Configure || k.String() != l.Kind {
		return f, fmt.Errorf("the frame is not of kind %q", l.Kind)
	}
	cause, err := causeNamed(l.Cause)
	if err != nil {
		return f, err
	}
	if l.Result == "" && cause == 0 {
		return f, nil
	}
	f.Answer = &host.Record{Kind: k, Frame: l.Frame, Output: l.Output, Fuel: l.Fuel, Cause: cause}
	if l.Result != "" {
		if f.Answer.Result, err = strconv.ParseUint(l.Result, 0, 64); err != nil {
			return f, fmt.Errorf("result %q: must be a number such as 0x0000000000000001", l.Result)
		}
	}
	if l.Module != "" {
		sum, err := hex.DecodeString(l.Module)
		if err != nil || len(sum) != len(f.Answer.Module) {
			return f, fmt.Errorf("module %q: must be 64 hexadecimal digits", l.Module)
		}
		copy(f.Answer.Module[:], sum)
	}
	return f, nil
}

func causeNamed(name string) (host.Cause, error) {
	if name == "" {
		return 0, nil
	}
	for c := host.Cause(1); int(c) < host.NumCauses; c++ {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("cause %q is unknown", name)
}

// Write writes a call log that Read reads. It omits fuel that was counted by another
// version.
func Write(w io.Writer, frames []Call) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	if err := e.Encode(head{Format, host.Version}); err != nil {
		return err
	}
	for _, f := range frames {
		l := line{Kind: abi.KindOf(f.Frame).String(), Frame: f.Frame}
		if a := f.Answer; a != nil {
			if a.Cause == 0 {
				l.Result, l.Output = fmt.Sprintf("0x%016x", a.Result), a.Output
			} else {
				l.Cause = a.Cause.String()
			}
			if a.Module != [len(a.Module)]byte{} {
				l.Module = hex.EncodeToString(a.Module[:])
			}
			if f.FuelComparable {
				l.Fuel = a.Fuel
			}
		}
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	return b.Flush()
}

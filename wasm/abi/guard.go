package abi

import "github.com/cascadeinfer/cascade/policies"

// guard: decides whether a plan may replace the plan in force.
//
//	args    0 text model
//	        8 u64  epoch in force
//	       16 u64  epoch proposed
//	       24 u32  now: number of records of the plan in force
//	       28 u32  replicas: number of names
//	       32 u32  names: offset in aux, a multiple of 8, of as many texts
//	       36 u32  0
//	record  0 i64  low
//	        8 i64  high; 2^63−1 for a plan's last stage
//	       16 u32  first: index of its first name
//	       20 u32  count: number of its names
//	output  0 u32  code: the rule that was broken, as the guard's author numbers them
//	        4 i32  stage of the proposed plan that broke it, −1 for the whole plan
//	        8 u32  length of the detail, which follows at 16
//	       12 u32  0
//	       16      detail: UTF-8, at most 256 bytes
//	value     with OK, 0: allowed; with None, the output's length: denied
//	rule      stage is −1 or a stage of the proposed plan
//
// The records of the plan in force come first; a model's first plan has none before
// it. The texts of the names are in aux, too.
const (
	guardArgs = 40
	planSize  = 24
	guardHead = 16
)

// MaxDetail bounds the text of a denial, in bytes.
const MaxDetail = 256

// Change is the replacement of a plan by another one of the same model. Now is zero
// if the model has no plan yet.
type Change struct{ Now, Next policies.Plan }

// Denial is the reason why a plan is not allowed.
type Denial struct {
	Code   uint32 // as the guard's author numbers its rules
	Stage  int    // of the proposed plan, −1 for the plan as a whole
	Detail string // for operators; at most MaxDetail bytes
}

// EncodeGuardCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. Plans of two models are ErrInput.
func EncodeGuardCall(arena []byte, c Call, ch Change) (int, error) {
	if len(ch.Now.Stages) > 0 && ch.Now.Model != ch.Next.Model {
		return 0, ErrInput
	}
	plans := [...]*policies.Plan{&ch.Now, &ch.Next}
	model := pad(len(ch.Next.Model))
	names, bytes := 0, 0
	for _, p := range plans {
		for i := range p.Stages {
			names += len(p.Stages[i].Replicas)
			for _, id := range p.Stages[i].Replicas {
				bytes += len(id)
			}
		}
	}
	p, n, err := frameShape{kind: Guard, args: guardArgs, size: planSize, count: len(ch.Now.Stages) + len(ch.Next.Stages),
		aux: model + 8*names + bytes, output: guardHead + MaxDetail}.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	a := p.args[:guardArgs]
	clear(p.aux[:model])
	t := textWriter{aux: p.aux}
	t.put(a, ch.Next.Model)
	put64(a[8:], uint64(ch.Now.Epoch))
	put64(a[16:], uint64(ch.Next.Epoch))
	put32(a[24:], uint32(len(ch.Now.Stages)))
	put32(a[28:], uint32(names))
	put32(a[32:], uint32(model))
	put32(a[36:], 0)
	t.at = model + 8*names
	record, name := 0, 0
	for _, plan := range plans {
		for i := range plan.Stages {
			s := &plan.Stages[i]
			r := p.record(record)[:planSize]
			put64(r, uint64(s.Low))
			put64(r[8:], uint64(s.High))
			put32(r[16:], uint32(name))
			put32(r[20:], uint32(len(s.Replicas)))
			for _, id := range s.Replicas {
				t.put(p.aux[model+8*name:], string(id))
				name++
			}
			record++
		}
	}
	return n, nil
}

// DecodeGuardCall returns the change in a frame, whose texts share the frame's
// memory. It allocates: no request waits for a guard.
func DecodeGuardCall(frame []byte) (Change, Status) { return new(GuardBuffer).Decode(frame) }

// GuardBuffer is a reusable buffer for the stages and names of a Change. The zero
// value is ready for use.
type GuardBuffer struct {
	ids    []policies.ReplicaID
	stages []policies.Stage
}

// Decode is like DecodeGuardCall, but the change also shares the buffer's memory: it
// is valid until the next Decode. Decode does not allocate if the buffer is large
// enough.
func (g *GuardBuffer) Decode(frame []byte) (Change, Status) {
	var p frameAreas
	s := p.parse(frame, Guard, guardArgs, planSize)
	if s != OK {
		return Change{}, s
	}
	a := p.args[:guardArgs]
	model, ok := text(u64(a), p.aux)
	now, names, at := u32(a[24:]), u32(a[28:]), u32(a[32:])
	if !ok || uint64(now) > uint64(p.count) || uint64(at)+8*uint64(names) > uint64(len(p.aux)) {
		return Change{}, BadFrame
	}
	table := p.aux[at:]
	if cap(g.ids) < int(names) {
		g.ids = make([]policies.ReplicaID, names)
	}
	ids := g.ids[:names]
	for i := range ids {
		id, ok := text(u64(table[8*i:]), p.aux)
		if !ok {
			return Change{}, BadFrame
		}
		ids[i] = policies.ReplicaID(id)
	}
	if cap(g.stages) < p.count {
		g.stages = make([]policies.Stage, p.count)
	}
	list := g.stages[:p.count]
	for i := range list {
		r := p.record(i)[:planSize]
		first, count := u32(r[16:]), u32(r[20:])
		if uint64(first)+uint64(count) > uint64(names) {
			return Change{}, BadFrame
		}
		list[i] = policies.Stage{Low: policies.Tokens(u64(r)), High: policies.Tokens(u64(r[8:])), Replicas: ids[first : first+count : first+count]}
	}
	ch := Change{
		Now:  policies.Plan{Epoch: policies.Epoch(u64(a[8:])), Stages: list[:now:now]},
		Next: policies.Plan{Epoch: policies.Epoch(u64(a[16:])), Stages: list[now:], Model: model},
	}
	if now > 0 {
		ch.Now.Model = model
	}
	return ch, OK
}

// EncodeGuardResult writes the denial, if denied, and returns the result. It
// truncates the detail to MaxDetail bytes.
func EncodeGuardResult(frame []byte, d Denial, denied bool) uint64 {
	if !denied {
		return Result(OK, 0)
	}
	detail := d.Detail[:min(len(d.Detail), MaxDetail)]
	out, s := outputRoom(frame, guardHead+len(detail))
	if s != OK {
		return Result(s, uint32(guardHead+len(detail)))
	}
	put32(out, d.Code)
	put32(out[4:], uint32(int32(d.Stage)))
	put32(out[8:], uint32(len(detail)))
	put32(out[12:], 0)
	copy(out[guardHead:], detail)
	return Result(None, uint32(len(out)))
}

// DecodeGuardResult returns the denial in a result, and whether there is one. The
// detail is a copy and may hold any bytes: quote it before you show it.
func DecodeGuardResult(frame []byte, result uint64, ch Change) (Denial, bool, error) {
	s, n := Unpack(result)
	switch {
	case s == OK && n == 0:
		return Denial{}, false, nil
	case s == OK:
		return Denial{}, false, ErrRule
	case s != None:
		return Denial{}, false, s
	}
	out, err := output(frame, n)
	if err != nil || n < guardHead {
		return Denial{}, false, ErrOutput
	}
	length := u32(out[8:])
	if length > MaxDetail || uint64(guardHead)+uint64(length) > uint64(n) {
		return Denial{}, false, ErrOutput
	}
	d := Denial{u32(out), int(int32(u32(out[4:]))), string(out[guardHead : guardHead+length])}
	if d.Stage < -1 || d.Stage >= len(ch.Next.Stages) {
		return Denial{}, false, ErrRule
	}
	return d, true, nil
}

// GuardCodec is the codec of the kind.
var GuardCodec = Codec[Change, GuardAnswer]{
	Kind: Guard, EncodeCall: EncodeGuardCall, DecodeCall: DecodeGuardCall,
	EncodeResult: func(frame []byte, _ Change, a GuardAnswer) (uint64, error) {
		return EncodeGuardResult(frame, a.Denial, a.Denied), nil
	},
	DecodeResult: func(frame []byte, result uint64, ch Change) (GuardAnswer, error) {
		d, denied, err := DecodeGuardResult(frame, result, ch)
		return GuardAnswer{d, denied}, err
	},
}

package abi

import "github.com/cascadeinfer/cascade/policies"

// partition: decides how to divide a fleet into length stages.
//
//	args    0 i64  KV tokens that a replica holds
//	        8 i64  batch: sequences that it runs concurrently
//	       16 f64  transfer rate: migrations that it can send per second, and receive
//	       24 i64  replicas to divide
//	       32 f64  D0, D1, D2, D3, D4, kappa: see policies.Cost
//	       80 f64  seconds per migration
//	       88 f64  seconds per migrated token
//	       96 i64  maximum of stages, 0 means 8
//	      104 f64  longest iteration in seconds, 0 means no limit
//	      112 f64  pooling
//	      120 f64  utilisation, 0 means 1
//	      128 u64  requests seen
//	      136 u64  bit 0: the records have a snapshot
//	      144 f64  D0, D1, D2, D3, D4: see policies.QoE; since 1.4
//	record  0 i64  edge: where the length bucket starts
//	        8 f64  arrivals, tokens, reads, prefill, prefill2, weight, crossings:
//	               rates per second, see policies.Flow
//	       64 f64  requests in flight, their Σ input, Σ input², Σ length
//	output  0 u32  hdr_len: 32, where the stages begin
//	        4 u32  bit 0: exact, bit 1: the stages have iteration times
//	        8 u32  stages
//	       12 u32  stride: 24
//	       16 f64  cost
//	       24 f64  cost of one stage; +Inf when it cannot carry the work
//	stage   0 i64  end of its range; 2^63−1 for the last
//	        8 i64  replicas
//	       16 f64  seconds per iteration
//	value     the output's length; with None, no partition meets the limits
//	rules     there is at least 1 stage, and not more than the maximum; ends are
//	          positive and ascend; each stage has a replica, and the stages have
//	          all replicas; the cost is finite, the cost of one stage not NaN;
//	          iteration times are finite and not negative
const (
	partitionArgs   = 184
	partitionArgs10 = 144 // the arguments of 1.0
	bucketSize      = 96
	partitionHead   = 32
	stageSize       = 24
)

// stageLimit bounds the stages of an answer, whatever limit a workload sets.
const stageLimit = 1024

func maxStages(l policies.Limits) int {
	if l.Stages == 0 {
		return policies.MaxStages
	}
	return min(max(l.Stages, 1), stageLimit)
}

// EncodePartitionCall writes a frame into an arena and returns its length; with
// ErrShort, the length that the frame needs. It does not allocate. Slices of the
// flow that are not as long as its edges are ErrInput.
func EncodePartitionCall(arena []byte, c Call, w policies.Workload) (int, error) {
	f := &w.Flow
	count := len(f.Edges)
	columns := [...][]float64{f.Arrivals, f.Tokens, f.Reads, f.Prefill, f.Prefill2, f.Weight, f.Crossings}
	for _, col := range columns {
		if len(col) != count {
			return 0, ErrInput
		}
	}
	if w.Snapshot != nil && len(w.Snapshot) != count {
		return 0, ErrInput
	}
	p, n, err := frameShape{kind: Partition, args: partitionArgs, size: bucketSize, count: count,
		output: partitionHead + stageSize*maxStages(w.Limits)}.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	a := p.args[:partitionArgs]
	put64(a, uint64(w.Capacity.KV))
	put64(a[8:], uint64(w.Capacity.Batch))
	putFloat(a[16:], w.Capacity.TransferRate)
	put64(a[24:], uint64(w.Replicas))
	encodeCost(a[32:], w.Cost)
	putFloat(a[80:], w.Transfer.Base)
	putFloat(a[88:], w.Transfer.PerToken)
	put64(a[96:], uint64(w.Limits.Stages))
	putFloat(a[104:], w.Limits.Iteration)
	putFloat(a[112:], w.Limits.Pooling)
	putFloat(a[120:], w.Limits.Utilisation)
	put64(a[128:], f.Seen)
	put64(a[136:], uint64(flagIf(w.Snapshot != nil, 1)))
	encodeQoE(a[144:], w.QoE)
	for i := range count {
		r := p.records[i*bucketSize:][:bucketSize]
		put64(r, uint64(f.Edges[i]))
		for k, col := range columns {
			putFloat(r[8+8*k:], col[i])
		}
		var b policies.Batch
		if w.Snapshot != nil {
			b = w.Snapshot[i]
		}
		putFloat(r[64:], b.N)
		putFloat(r[72:], b.SumI)
		putFloat(r[80:], b.SumI2)
		putFloat(r[88:], b.SumL)
	}
	return n, nil
}

// DecodePartitionCall reads a frame into a workload, and reuses the workload's slices
// where they are long enough. It does not validate the values: see
// policies.Workload.Validate.
func DecodePartitionCall(frame []byte, w *policies.Workload) Status {
	var p frameAreas
	s := p.parse(frame, Partition, partitionArgs10, bucketSize)
	if s != OK {
		return s
	}
	a := p.args[:partitionArgs10]
	f := &w.Flow
	if cap(f.Edges) < p.count || cap(f.Arrivals) < p.count {
		*f = policies.NewFlow(make([]policies.Tokens, p.count))
	}
	f.Edges = f.Edges[:p.count]
	columns := [...]*[]float64{&f.Arrivals, &f.Tokens, &f.Reads, &f.Prefill, &f.Prefill2, &f.Weight, &f.Crossings}
	for _, col := range columns {
		if cap(*col) < p.count {
			*col = make([]float64, p.count)
		}
		*col = (*col)[:p.count]
	}
	snapshot := w.Snapshot[:0]
	for i := range p.count {
		r := p.record(i)[:bucketSize]
		f.Edges[i] = policies.Tokens(u64(r))
		for k, col := range columns {
			(*col)[i] = f64(r[8+8*k:])
		}
		if u64(a[136:])&1 != 0 {
			snapshot = append(snapshot, policies.Batch{N: f64(r[64:]), SumI: f64(r[72:]), SumI2: f64(r[80:]), SumL: f64(r[88:])})
		}
	}
	f.Seen = u64(a[128:])
	w.Snapshot = nil
	if u64(a[136:])&1 != 0 {
		if w.Snapshot = snapshot; snapshot == nil {
			w.Snapshot = []policies.Batch{}
		}
	}
	w.Capacity = policies.Capacity{KV: policies.Tokens(u64(a)), Batch: int(u64(a[8:])), TransferRate: f64(a[16:])}
	w.Replicas = int(u64(a[24:]))
	w.Cost, w.QoE = decodeCost(a[32:]), policies.QoE{}
	if len(p.args) >= partitionArgs {
		w.QoE = decodeQoE(p.args[144:])
	}
	w.Transfer = policies.Transfer{Base: f64(a[80:]), PerToken: f64(a[88:])}
	w.Limits = policies.Limits{Stages: int(u64(a[96:])), Iteration: f64(a[104:]), Pooling: f64(a[112:]), Utilisation: f64(a[120:])}
	return OK
}

// EncodePartitionResult writes a partition, if feasible, and returns the result. If
// the lengths of the partition's slices contradict each other, the result is Failed.
func EncodePartitionResult(frame []byte, p policies.Partition, feasible bool) uint64 {
	if !feasible {
		return Result(None, 0)
	}
	count := len(p.Counts)
	if len(p.Cuts)+1 != count || p.Iterations != nil && len(p.Iterations) != count {
		return Result(Failed, 0)
	}
	n := partitionHead + stageSize*count
	out, s := outputRoom(frame, n)
	if s != OK {
		return Result(s, uint32(n))
	}
	put32(out, partitionHead)
	put32(out[4:], flagIf(p.Exact, 1)|flagIf(p.Iterations != nil, 2))
	put32(out[8:], uint32(count))
	put32(out[12:], stageSize)
	putFloat(out[16:], p.Cost)
	putFloat(out[24:], p.OneStage)
	for i := range count {
		r := out[partitionHead+i*stageSize:][:stageSize]
		end, iteration := policies.Unbounded, 0.0
		if i < len(p.Cuts) {
			end = p.Cuts[i]
		}
		if p.Iterations != nil {
			iteration = p.Iterations[i]
		}
		put64(r, uint64(end))
		put64(r[8:], uint64(p.Counts[i]))
		putFloat(r[16:], iteration)
	}
	return Result(OK, uint32(n))
}

// DecodePartitionResult returns the partition in a result for workload w. For None
// the error is policies.ErrInfeasible.
func DecodePartitionResult(frame []byte, result uint64, w policies.Workload) (policies.Partition, error) {
	s, n := Unpack(result)
	switch {
	case s == None:
		return policies.Partition{}, policies.ErrInfeasible
	case s != OK:
		return policies.Partition{}, s
	}
	out, err := output(frame, n)
	if err != nil || n < partitionHead {
		return policies.Partition{}, ErrOutput
	}
	head, flags, count, stride := u32(out), u32(out[4:]), u32(out[8:]), u32(out[12:])
	if head < partitionHead || stride < stageSize || uint64(head)+uint64(count)*uint64(stride) > uint64(n) {
		return policies.Partition{}, ErrOutput
	}
	if count < 1 || int(count) > maxStages(w.Limits) {
		return policies.Partition{}, ErrRule
	}
	p := policies.Partition{
		Cuts: make([]policies.Tokens, 0, count-1), Counts: make([]int, 0, count),
		Cost: f64(out[16:]), OneStage: f64(out[24:]), Exact: flags&1 != 0,
	}
	if !isFinite(p.Cost) || p.OneStage != p.OneStage {
		return policies.Partition{}, ErrRule
	}
	from, left := policies.Tokens(0), int64(w.Replicas)
	for i := range count {
		r := out[head+i*stride:][:stageSize]
		end, k, iteration := policies.Tokens(u64(r)), int64(u64(r[8:])), f64(r[16:])
		if end <= from || (end == policies.Unbounded) != (i == count-1) || k < 1 || k > left {
			return policies.Partition{}, ErrRule
		}
		from, left = end, left-k
		p.Counts = append(p.Counts, int(k))
		if i < count-1 {
			p.Cuts = append(p.Cuts, end)
		}
		if flags&2 != 0 {
			if !isFinite(iteration) || iteration < 0 {
				return policies.Partition{}, ErrRule
			}
			p.Iterations = append(p.Iterations, iteration)
		}
	}
	if left != 0 {
		return policies.Partition{}, ErrRule
	}
	return p, nil
}

func encodeCost(b []byte, c policies.Cost) {
	b = b[:48]
	putFloat(b, c.D0)
	putFloat(b[8:], c.D1)
	putFloat(b[16:], c.D2)
	putFloat(b[24:], c.D3)
	putFloat(b[32:], c.D4)
	putFloat(b[40:], c.Kappa)
}

func decodeCost(b []byte) policies.Cost {
	b = b[:48]
	return policies.Cost{D0: f64(b), D1: f64(b[8:]), D2: f64(b[16:]), D3: f64(b[24:]), D4: f64(b[32:]), Kappa: f64(b[40:])}
}

// PartitionCodec is the codec of the kind.
var PartitionCodec = Codec[policies.Workload, PartitionAnswer]{
	Kind: Partition, EncodeCall: EncodePartitionCall,
	DecodeCall: func(frame []byte) (w policies.Workload, s Status) {
		s = DecodePartitionCall(frame, &w)
		return w, s
	},
	EncodeResult: func(frame []byte, _ policies.Workload, a PartitionAnswer) (uint64, error) {
		if a.Err != nil && a.Err != policies.ErrInfeasible {
			return 0, a.Err
		}
		return EncodePartitionResult(frame, a.Partition, a.Err == nil), nil
	},
	DecodeResult: func(frame []byte, result uint64, w policies.Workload) (PartitionAnswer, error) {
		p, err := DecodePartitionResult(frame, result, w)
		if err == policies.ErrInfeasible { // an answer, not a fault
			return PartitionAnswer{p, err}, nil
		}
		return PartitionAnswer{p, nil}, err
	},
}

package kvevents

// order puts the batches of one engine in order. Batches are numbered from 0 on, by one for
// each. They come live, as the engine publishes them, and as answers to a replay, which the
// engine sends when it is asked for all batches from a number on. The invariants:
//
//  1. Batches are applied in the order of their numbers, each at most once.
//  2. What is applied between two clears comes from one run of the engine, as far as numbers and
//     connections show.
//  3. While a replay fetches batches that are missing, live batches wait. What waits is bounded;
//     beyond the bound the gap before them is given up. A probe, which only asks whether there
//     are later batches, delays none.
//  4. What is known counts (synced) while no batch is known to be missing: not before the first
//     replay has ended, and not while a gap is open, in which blocks may have been removed. What
//     no replay brings is given up, and what is known counts again without it.
//
// It is a pure state machine: its methods return what is to be done, in that order. Its payloads
// are kept as they are, so who calls it must not reuse them.
type order struct {
	replays bool // whether the engine serves replays

	connected bool
	next      uint64 // the number of the batch that is applied next
	any       bool   // nothing is known of the numbers, so that any may be next
	live      uint64 // one more than the number of the last live batch, 0 before the first
	replay    replayPurpose
	progress  bool // the replay has brought something
	failures  int  // replays in a row that did not bring what is missing
	synced    bool // what is known is what the engine has published, but for what is lost
	waiting   []numbered
	bytes     int // of the payloads in waiting

	counts orderCounts
}

// replayPurpose is what the replay that is under way is for.
type replayPurpose uint8

const (
	noReplay replayPurpose = iota
	probe                  // finds out whether there are later batches than the last one
	fill                   // brings the batches that are missing
)

// numbered is a batch and its number.
type numbered struct {
	seq     uint64
	payload []byte
}

// orderCounts counts since the order was made.
type orderCounts struct {
	applied    uint64
	duplicates uint64 // batches that a replay brought once more
	gaps       uint64 // where live batches were missing
	lost       uint64 // batches that no replay brought
	restarts   uint64 // of the engine: its numbers began anew, on one connection
	replays    uint64
	failed     uint64 // replays without an end
}

// Limits of what waits while a replay runs, and of replays that bring nothing.
const (
	maxWaiting      = 4096
	maxWaitingBytes = 32 << 20
	maxFailures     = 4
)

// action is what is to be done.
type action uint8

const (
	applyBatch action = iota
	clearIndex
	askReplay // from the number on; a replay that is under way ends
)

// todo is an action and its object.
type todo struct {
	action  action
	seq     uint64 // of the batch, or where the replay begins
	payload []byte
}

// connect begins a connection of the engine. What was known belongs to another run of it, or
// may.
func (o *order) connect() []todo {
	o.connected, o.live = true, 0
	return o.begin(nil)
}

// begin clears the index, and asks for all batches of the engine.
func (o *order) begin(out []todo) []todo {
	o.next, o.any = 0, true
	o.drop()
	return o.fill(append(out, todo{action: clearIndex}))
}

// disconnect ends the connection. What is known stays until the next one begins.
func (o *order) disconnect() {
	o.connected, o.replay, o.synced = false, noReplay, false
	o.drop()
}

// drop forgets what waits.
func (o *order) drop() { o.waiting, o.bytes = nil, 0 }

// ask begins a replay from next on, if there are replays.
func (o *order) ask(out []todo, purpose replayPurpose) []todo {
	if !o.replays {
		o.replay = noReplay
		return out
	}
	o.replay, o.progress = purpose, false
	o.counts.replays++
	return append(out, todo{action: askReplay, seq: o.next})
}

// fill asks for batches that are missing. What is known does not count until they are there.
// Failures of the replays before do not count.
func (o *order) fill(out []todo) []todo {
	o.synced, o.failures = false, 0
	return o.ask(out, fill)
}

// receive takes a live batch.
func (o *order) receive(seq uint64, payload []byte) (out []todo) {
	if !o.connected {
		return nil
	}
	if seq < o.live { // only an engine that began anew repeats a number
		o.counts.restarts++
		out = o.begin(out)
	}
	o.live = seq + 1
	switch {
	case o.replay == fill:
	case seq < o.next: // a replay was faster
		o.counts.duplicates++
		return out
	case seq == o.next || o.any:
		return o.accept(out, seq, payload)
	default:
		o.counts.gaps++
		if out = o.fill(out); o.replay == noReplay {
			return o.accept(out, seq, payload)
		}
	}
	o.waiting = append(o.waiting, numbered{seq, payload})
	o.bytes += len(payload)
	if len(o.waiting) > maxWaiting || o.bytes > maxWaitingBytes {
		return o.giveUp(out)
	}
	return out
}

// apply applies the next batch.
func (o *order) apply(out []todo, seq uint64, payload []byte) []todo {
	o.next, o.any = seq+1, false
	o.counts.applied++
	return append(out, todo{action: applyBatch, seq: seq, payload: payload})
}

// accept applies a live batch although those before it may be lost.
func (o *order) accept(out []todo, seq uint64, payload []byte) []todo {
	o.counts.lost += seq - o.next
	o.synced = true
	return o.apply(out, seq, payload)
}

// answer takes a batch of the replay.
func (o *order) answer(seq uint64, payload []byte) []todo {
	switch {
	case o.replay == noReplay:
		return nil
	case seq < o.next: // a live batch was faster
		o.progress = true
		o.counts.duplicates++
		return nil
	case seq > o.next && o.progress:
		// The engine has dropped answers, since they were read too slowly.
		return o.fill(nil)
	}
	// A first answer beyond next shows that the engine keeps no older ones.
	o.progress = true
	o.counts.lost += seq - o.next
	return o.apply(nil, seq, payload)
}

// end takes the end of the replay: now all that the engine has published is applied or waits.
func (o *order) end() (out []todo) {
	if o.replay == noReplay {
		return nil
	}
	for len(o.waiting) > 0 {
		w := o.waiting[0]
		switch {
		case w.seq > o.next:
			// It was published before it was received, so the replay should have brought those
			// before it.
			return o.retry(out)
		case w.seq < o.next:
			o.counts.duplicates++
		default:
			out = o.apply(out, w.seq, w.payload)
		}
		o.bytes -= len(w.payload)
		o.waiting = o.waiting[1:]
	}
	o.replay, o.any, o.failures, o.synced = noReplay, false, 0, true
	o.drop()
	return out
}

// fail takes the end of a replay that did not come to its end.
func (o *order) fail() []todo {
	if o.replay == noReplay {
		return nil
	}
	o.counts.failed++
	if o.progress {
		o.failures = 0
	}
	return o.retry(nil)
}

// retry asks again, unless that was in vain several times.
func (o *order) retry(out []todo) []todo {
	if o.failures++; o.failures < maxFailures {
		return o.ask(out, o.replay)
	}
	return o.giveUp(out)
}

// giveUp ends the replay. Batches that are still missing are lost.
func (o *order) giveUp(out []todo) []todo {
	o.replay, o.failures = noReplay, 0
	for _, w := range o.waiting {
		if w.seq >= o.next {
			out = o.accept(out, w.seq, w.payload)
		}
	}
	o.drop()
	return out
}

// quiet asks for what may have been lost after the last batch that came: that there are later
// ones shows in no number.
func (o *order) quiet() []todo {
	switch {
	case !o.connected || o.replay != noReplay:
		return nil
	case o.synced:
		return o.ask(nil, probe)
	}
	return o.fill(nil) // the first replay, or one that was to fill a gap, was given up
}

package host

import (
	"encoding/binary"
	"strconv"

	"github.com/tetratelabs/wazero/api"
)

// wasi is where Go's wasip1 port imports from. What is here is what its runtime
// needs to start, to collect garbage and to print a panic: stubs that are the
// same in every run.
const wasi = "wasi_snapshot_preview1"

// The error numbers that are used.
const (
	errnoBadFile = 8
	errnoFault   = 21
	errnoInvalid = 28
)

const (
	// clockStep is what the clock advances by with every reading, in
	// nanoseconds. Go's garbage collector stops collecting with a clock that
	// stands still, or runs much faster than the program.
	clockStep = 1000
	// clockStart is the time when an instance is made: 2026-01-01, in
	// nanoseconds.
	clockStart = 1_767_225_600_000_000_000
	// mostVectors bounds how many buffers or subscriptions one import names.
	mostVectors = 64
	// mostRandom bounds what one import asks for.
	mostRandom = 1 << 10
	// errBytes is how much of its standard error an instance keeps: the end.
	errBytes = 4 << 10
)

// exitError ends a call: the guest exited.
type exitError uint32

func (e exitError) Error() string { return "exit(" + strconv.Itoa(int(e)) + ")" }

func nothing(_ *Instance, _ api.Module, stack []uint64) { stack[0] = 0 }

// done stores an error number as the result.
func done(stack []uint64, errno uint64) { stack[0] = errno }

// sizes is args_sizes_get and environ_sizes_get: there are none.
func sizes(_ *Instance, mod api.Module, stack []uint64) {
	memory := mod.Memory()
	if !memory.WriteUint32Le(uint32(stack[0]), 0) || !memory.WriteUint32Le(uint32(stack[1]), 0) {
		done(stack, errnoFault)
		return
	}
	done(stack, 0)
}

// clock is clock_time_get(id, precision, out).
func clock(i *Instance, mod api.Module, stack []uint64) {
	i.clock += clockStep
	now := i.clock
	if uint32(stack[0]) == 0 {
		now += clockStart
	}
	if !mod.Memory().WriteUint64Le(uint32(stack[2]), now) {
		done(stack, errnoFault)
		return
	}
	done(stack, 0)
}

// random is random_get(buf, len): the same numbers in every instance, by
// splitmix64.
func random(i *Instance, mod api.Module, stack []uint64) {
	at, n := uint32(stack[0]), uint32(stack[1])
	if n > mostRandom {
		done(stack, errnoInvalid)
		return
	}
	i.charge(mod, int64(n)/HostBytes)
	b, ok := mod.Memory().Read(at, n)
	if !ok {
		done(stack, errnoFault)
		return
	}
	for len(b) > 0 {
		i.random += 0x9e3779b97f4a7c15
		x := i.random
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], x^x>>31)
		b = b[copy(b, word[:]):]
	}
	done(stack, 0)
}

// write is fd_write(fd, iovs, count, written). Standard output and error go to
// the instance's last words, all else is not there.
func write(i *Instance, mod api.Module, stack []uint64) {
	fd, at, count, out := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	switch {
	case fd != 1 && fd != 2:
		done(stack, errnoBadFile)
		return
	case count > mostVectors:
		done(stack, errnoInvalid)
		return
	}
	memory, total := mod.Memory(), uint32(0)
	for k := range count {
		base, ok := memory.ReadUint32Le(at + 8*k)
		n, ok2 := memory.ReadUint32Le(at + 8*k + 4)
		if !ok || !ok2 {
			done(stack, errnoFault)
			return
		}
		b, ok := memory.Read(base, n)
		if !ok {
			done(stack, errnoFault)
			return
		}
		total += n
		i.charge(mod, int64(min(n, errBytes))/HostBytes)
		i.words = append(i.words, b[max(0, len(b)-errBytes):]...)
		if over := len(i.words) - errBytes; over > 0 {
			i.words = i.words[:copy(i.words, i.words[over:])]
		}
	}
	if !memory.WriteUint32Le(out, total) {
		done(stack, errnoFault)
		return
	}
	done(stack, 0)
}

// poll is poll_oneoff(in, out, count, events). Nobody sleeps: the clock is put
// forward to the earliest timeout that was asked for, and all are reported.
func poll(i *Instance, mod api.Module, stack []uint64) {
	const subscription, event = 48, 32
	in, out, count, events := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	if count == 0 || count > mostVectors {
		done(stack, errnoInvalid)
		return
	}
	i.charge(mod, int64(count))
	memory := mod.Memory()
	first := ^uint64(0)
	for k := range count {
		s, ok := memory.Read(in+k*subscription, subscription)
		if !ok {
			done(stack, errnoFault)
			return
		}
		var e [event]byte
		copy(e[:8], s[:8]) // who asked
		e[10] = s[8]       // for what
		if s[8] == 0 {
			timeout := binary.LittleEndian.Uint64(s[24:])
			if s[40]&1 != 0 { // a time, not a duration
				now := i.clock
				if binary.LittleEndian.Uint32(s[16:]) == 0 {
					now += clockStart
				}
				timeout -= min(timeout, now)
			}
			first = min(first, timeout)
		} else {
			e[8] = errnoBadFile
		}
		if !memory.Write(out+k*event, e[:]) {
			done(stack, errnoFault)
			return
		}
	}
	if first != ^uint64(0) {
		i.clock += min(first, 1<<40) // 18 minutes: the clock must not wrap around
	}
	if !memory.WriteUint32Le(events, count) {
		done(stack, errnoFault)
		return
	}
	done(stack, 0)
}

// exit is proc_exit(code): the call ends here.
func exit(_ *Instance, _ api.Module, stack []uint64) { panic(exitError(stack[0])) }

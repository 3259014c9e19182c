package host

import (
	"encoding/binary"
	"strconv"

	"github.com/tetratelabs/wazero/api"
)

// wasi is the module that Go's wasip1 port imports from. The functions in this file are
// those that Go's runtime needs to start, to collect garbage and to print a panic:
// deterministic stubs.
const wasi = "wasi_snapshot_preview1"

// WASI's error numbers.
const (
	errnoBadFile = 8
	errnoFault   = 21
	errnoInvalid = 28
)

const (
	// clockStep is added to the clock at every reading, in nanoseconds. Go's garbage
	// collector stops working if the clock stands still, or runs much faster than
	// the program.
	clockStep = 1000
	// clockStart is the time at which every instance starts: 2026-01-01, in
	// nanoseconds.
	clockStart = 1_767_225_600_000_000_000
	// maxVectors bounds the buffers or subscriptions of one import call.
	maxVectors = 64
	// maxRandom bounds the random bytes of one import call.
	maxRandom = 1 << 10
	// maxStderr is how many bytes of standard output and error an instance keeps:
	// the last ones.
	maxStderr = 4 << 10
)

// exitError ends a call in which the guest exited.
type exitError uint32

func (e exitError) Error() string { return "exit(" + strconv.Itoa(int(e)) + ")" }

func succeed(*Instance, api.Module, []uint64) (errno uint64) { return 0 }

// emptySizes implements args_sizes_get and environ_sizes_get: both are empty.
func emptySizes(_ *Instance, mod api.Module, stack []uint64) (errno uint64) {
	memory := mod.Memory()
	if !memory.WriteUint32Le(uint32(stack[0]), 0) || !memory.WriteUint32Le(uint32(stack[1]), 0) {
		return errnoFault
	}
	return 0
}

// readClock implements clock_time_get(id, precision, out).
func readClock(i *Instance, mod api.Module, stack []uint64) (errno uint64) {
	i.clock += clockStep
	now := i.clock
	if uint32(stack[0]) == 0 {
		now += clockStart
	}
	if !mod.Memory().WriteUint64Le(uint32(stack[2]), now) {
		return errnoFault
	}
	return 0
}

// readRandom implements random_get(buf, len) by splitmix64, with the same numbers in
// every instance.
func readRandom(i *Instance, mod api.Module, stack []uint64) (errno uint64) {
	at, n := uint32(stack[0]), uint32(stack[1])
	if n > maxRandom {
		return errnoInvalid
	}
	i.charge(mod, int64(n)/HostBytes)
	b, ok := mod.Memory().Read(at, n)
	if !ok {
		return errnoFault
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
	return 0
}

// writeOutput implements fd_write(fd, iovs, count, written). The instance keeps the end
// of standard output and standard error; other files do not exist.
func writeOutput(i *Instance, mod api.Module, stack []uint64) (errno uint64) {
	fd, at, count, out := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	switch {
	case fd != 1 && fd != 2:
		return errnoBadFile
	case count > maxVectors:
		return errnoInvalid
	}
	memory, total := mod.Memory(), uint32(0)
	for k := range count {
		base, ok := memory.ReadUint32Le(at + 8*k)
		n, ok2 := memory.ReadUint32Le(at + 8*k + 4)
		if !ok || !ok2 {
			return errnoFault
		}
		b, ok := memory.Read(base, n)
		if !ok {
			return errnoFault
		}
		total += n
		i.charge(mod, int64(min(n, maxStderr))/HostBytes)
		i.stderr = append(i.stderr, b[max(0, len(b)-maxStderr):]...)
		if over := len(i.stderr) - maxStderr; over > 0 {
			i.stderr = i.stderr[:copy(i.stderr, i.stderr[over:])]
		}
	}
	if !memory.WriteUint32Le(out, total) {
		return errnoFault
	}
	return 0
}

// pollTimers implements poll_oneoff(in, out, count, events). It does not sleep: it
// advances the clock to the earliest timeout among the subscriptions, and reports all of
// them.
func pollTimers(i *Instance, mod api.Module, stack []uint64) (errno uint64) {
	const subscription, event = 48, 32
	in, out, count, events := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	if count == 0 || count > maxVectors {
		return errnoInvalid
	}
	i.charge(mod, int64(count))
	memory := mod.Memory()
	first := ^uint64(0)
	for k := range count {
		s, ok := memory.Read(in+k*subscription, subscription)
		if !ok {
			return errnoFault
		}
		var e [event]byte
		copy(e[:8], s[:8]) // the subscription's user data
		e[10] = s[8]       // its type
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
			return errnoFault
		}
	}
	if first != ^uint64(0) {
		i.clock += min(first, 1<<40) // 18 minutes: the clock must not wrap around
	}
	if !memory.WriteUint32Le(events, count) {
		return errnoFault
	}
	return 0
}

// exitCall implements proc_exit(code): it ends the call.
func exitCall(_ *Instance, _ api.Module, stack []uint64) { panic(exitError(stack[0])) }

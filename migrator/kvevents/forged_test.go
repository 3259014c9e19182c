package kvevents_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
)

// TestRejected sends what is no batch, or not one of this engine. Nothing of it changes the
// index, and the batches after it are applied.
func TestRejected(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(3, false)
		seq := binary.BigEndian.AppendUint64(nil, 3)
		topic := []byte("kv@r1")
		for _, frames := range [][][]byte{
			{topic}, {topic, seq}, {topic, seq, e.payload(3), nil}, {[]byte("kv@r10"), seq, e.payload(3)}, {topic, seq[1:], e.payload(3)},
			{topic, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil}, {nil, nil, nil},
		} {
			e.sendFrames(frames...)
		}
		check(t, e, x, s, 0, true)
		if st := s.Status(); st.Rejected != 7 || st.Malformed != 0 || st.Gaps != 0 {
			t.Errorf("%+v", st)
		}
		// Malformed payloads, and one of another rank, count as batches without events.
		payload := e.payload(3)
		for i, p := range [][]byte{nil, payload[:len(payload)-3], append(slices.Clone(payload[:len(payload)-1]), 3), []byte(strings.Repeat("\x91", 1000))} {
			e.sendFrames(topic, binary.BigEndian.AppendUint64(nil, uint64(3+i)), p)
		}
		if st := s.Status(); st.Malformed != 3 || st.OtherRank != 1 || st.Batches != 3 || st.Gaps != 0 || !st.Live || x.Status().Blocks != 3 {
			t.Errorf("%+v, %d blocks", st, x.Status().Blocks)
		}
		e.next = 7
		e.send(1, false)
		if x.Status().Blocks != 4 {
			t.Errorf("%d blocks", x.Status().Blocks)
		}
	})
}

// TestForgedNumbers checks that batches with invented numbers cost replays, and that the true
// state is back after them.
func TestForgedNumbers(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(5, false)
		for _, n := range []uint64{1 << 40, 2, 1 << 63, 0} {
			e.sendFrames([]byte("kv@r1"), binary.BigEndian.AppendUint64(nil, n), []byte{0x80})
			e.send(1, false)
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			check(t, e, x, s, 0, true)
		}
	})
}

// TestNewerConnection checks that a connection replaces the former one: an engine that restarts may leave it open.
func TestNewerConnection(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(2, false)
		former := e.conn
		e.connect()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		e.send(2, false)
		check(t, e, x, s, 0, true)
		if _, err := former.Receive(time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the former connection still works: %v", err)
		}
		former.Close()
		if st := s.Status(); st.Connections != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// TestForgedPeers checks that peers that speak no ZMTP, send garbage, never end their greeting, or announce a
// frame of 2^63 bytes lose their connection, with an error that names them and what they did, and that the engine
// is followed after each.
func TestForgedPeers(t *testing.T) {
	var log testkit.Log
	testLogged(t, &log, func(e *engine, x *index, s *kvevents.Subscriber) {
		greet := func(text string) { // for a minute
			b := newEagerConn(testkit.Must(e.publish.Dial(context.Background())))
			for range 60 {
				b.Write([]byte(text))
				time.Sleep(time.Second)
			}
			b.Close()
		}
		huge := append([]byte{2}, 0x80, 0, 0, 0, 0, 0, 0, 0)
		for i, peer := range []struct {
			send func()
			want string // in the log
		}{
			{func() { e.raw.Write(huge) }, "announces 9223372036854775808 bytes"},
			{func() { e.raw.Write(append([]byte{3}, huge[1:]...)) }, "announces 9223372036854775808 bytes"},
			{func() { e.raw.Write([]byte("\xf0garbage")) }, "flags 0xf0"},
			{func() { e.raw.Write([]byte("\x06\x80\x00\x00\x00\x00\x00\x00\x00")) }, "a command of 9223372036854775808 bytes"},
			{func() { // never ends a message
				for range 100 {
					e.raw.Write([]byte("\x01\x00"))
				}
			}, "frames"},
			{func() { greet("\xff") }, "ZMTP handshake with"}, // one byte in a second
			{func() { greet("GET / HTTP/1.1\r\n\r\n" + strings.Repeat(" ", 64)) }, "ZMTP handshake with"},
			{func() { greet("") }, "ZMTP handshake with"},
		} {
			e.connect()
			time.Sleep(2 * time.Second)
			e.send(1, false)
			check(t, e, x, s, 0, true)
			before := len(log.String())
			peer.send()
			synctest.Wait()
			if text := log.String()[before:]; !strings.Contains(text, peer.want) || !strings.Contains(text, "pipe") {
				t.Errorf("peer %d: the log does not name the peer and %q:\n%s", i, peer.want, text)
			}
			e.restart()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			e.send(2, false)
			check(t, e, x, s, 0, true)
			e.conn.Close()
			e.begin, e.next = e.begin+1000, 0
			synctest.Wait()
		}
	})
}

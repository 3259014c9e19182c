package kvport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	handle = "00112233445566778899aabbccddeeff"
	digest = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// start runs a server of 4 slots of 2 bytes, with one migrator that is connected.
func start(t *testing.T, fetchTimeout time.Duration) (*Server, *net.UnixConn) {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := testkit.Must(New(Config{Dir: dir, Fingerprint: "f", Slots: 4, SlotBytes: 2, FetchTimeout: fetchTimeout}))
	t.Cleanup(testkit.Run(t, s.Run))
	if _, connected := s.Replica(); connected || !errors.Is(s.Offer(handle, digest, nil), ErrNoMigrator) {
		t.Error("a migrator is connected")
	}
	if _, err := s.Fetch(t.Context(), Want{}); !errors.Is(err, ErrNoMigrator) {
		t.Error(err)
	}
	var conn *net.UnixConn
	testkit.WaitFor(t, "the socket", func() (ok bool) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, api.Socket), Net: "unix"})
		conn = c
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	send(t, conn, api.Frame{Hello: &api.Hello{Version: api.Version, Replica: "r0", Incarnation: 1}})
	if w := read(t, conn).Welcome; w.Fingerprint != "f" || w.Blocks != 4 || w.Table != nil || len(w.Handles) != 1 || w.Regions[0] != (api.Region{Stride: 2, Bytes: 2}) {
		t.Errorf("%+v", w)
	}
	if r, connected := s.Replica(); r != "r0" || !connected {
		t.Errorf("replica %q, %v", r, connected)
	}
	return s, conn
}

func send(t *testing.T, c net.Conn, f api.Frame) {
	t.Helper()
	testkit.Must(c.Write(testkit.Must(f.Append(nil))))
}

func read(t *testing.T, c net.Conn) api.Frame {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	f, err := api.ReadFrame(c)
	testkit.NoError(t, err)
	return f
}

// TestFull: an offer that does not fit says so, and fits once slots are released.
func TestFull(t *testing.T) {
	s, c := start(t, time.Minute)
	testkit.NoError(t, s.Offer(handle, digest, []byte("aabbcc")))
	if o := read(t, c).Offer; len(o.Blocks) != 3 || o.Error != "" {
		t.Errorf("%+v", o)
	}
	other := strings.Repeat("ab", 16)
	testkit.NoError(t, s.Offer(other, digest, []byte("ddee")))
	if o := read(t, c).Offer; o.Handle != other || o.Error != "the staging memory is full: 1 of 4 slots are free, 2 are needed" {
		t.Errorf("%+v", o)
	}
	if _, err := s.Fetch(t.Context(), Want{Holder: "r1", Handle: handle, Digest: digest, Blocks: 2}); !errors.Is(err, errFull) {
		t.Error(err)
	}
	send(t, c, api.Frame{Released: &api.Released{Handle: handle}})
	testkit.WaitFor(t, "free slots", func() bool {
		testkit.NoError(t, s.Offer(other, digest, []byte("ddee")))
		return read(t, c).Offer.Error == ""
	})
}

// TestInvalid: what cannot be sent leaves neither its slots nor the connection unusable.
func TestInvalid(t *testing.T) {
	s, c := start(t, time.Minute)
	for want, w := range map[string]Want{
		`handle "x"`:          {Holder: "r1", Handle: "x", Digest: digest, Blocks: 4},
		"holder of 257 bytes": {Holder: strings.Repeat("r", 257), Handle: handle, Digest: digest, Blocks: 4},
	} {
		_, err := s.Fetch(t.Context(), w)
		testkit.WantError(t, err, want)
	}
	testkit.WantError(t, s.Offer("x", digest, []byte("aabbccdd")), `handle "x"`)
	testkit.NoError(t, s.Offer(handle, digest, []byte("aabbccdd")))
	if o := read(t, c).Offer; o.Handle != handle || len(o.Blocks) != 4 {
		t.Errorf("%+v", o)
	}
}

// TestGivenUp: a fetch that is given up keeps its slots until the migrator has answered, and no longer.
func TestGivenUp(t *testing.T) {
	s, c := start(t, time.Minute)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	want := Want{Holder: "r1", Handle: handle, Digest: digest, First: 1, Blocks: 4}
	go func() { _, err := s.Fetch(ctx, want); ended <- err }()
	f := read(t, c).Fetch
	gone := errors.New("the client is gone")
	cancel(gone)
	if err := <-ended; err != gone {
		t.Error(err)
	}
	if _, err := s.Fetch(t.Context(), Want{Holder: "r1", Handle: handle, Digest: digest, Blocks: 1}); !errors.Is(err, errFull) {
		t.Errorf("its slots are free: %v", err)
	}
	send(t, c, api.Frame{Fetched: &api.Fetched{ID: f.ID}})
	got := make(chan []byte, 1)
	go func() {
		for {
			b, err := s.Fetch(t.Context(), want)
			if err == nil {
				got <- b
				return
			}
			if !errors.Is(err, errFull) { // the answer is on its way
				t.Error(err)
				got <- nil
				return
			}
		}
	}()
	send(t, c, api.Frame{Fetched: &api.Fetched{ID: read(t, c).Fetch.ID}})
	if b := <-got; !bytes.Equal(b, make([]byte, 8)) {
		t.Errorf("%q", b)
	}
}

// TestFetchTimeout: a migrator that does not answer is not waited for.
func TestFetchTimeout(t *testing.T) {
	s, _ := start(t, time.Millisecond)
	_, err := s.Fetch(t.Context(), Want{Holder: "r1", Handle: handle, Digest: digest, Blocks: 1})
	testkit.WantError(t, err, "did not fetch the blocks in time")
}

// TestSessionEnds: what waits for a migrator that has gone ends.
func TestSessionEnds(t *testing.T) {
	s, c := start(t, time.Minute)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Fetch(t.Context(), Want{Holder: "r1", Handle: handle, Digest: digest, Blocks: 1})
		ended <- err
	}()
	f := read(t, c).Fetch
	send(t, c, api.Frame{Fetched: &api.Fetched{ID: f.ID + 1}})
	if err := <-ended; !errors.Is(err, errEnded) {
		t.Error(err)
	}
	testkit.WaitFor(t, "the end", func() bool { _, connected := s.Replica(); return !connected })
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Dir: "d"})
	testkit.WantError(t, err, "Dir and Fingerprint are required")
	_, err = New(Config{Dir: strings.Repeat("d", MaxDir+1), Fingerprint: "f", Slots: 1, SlotBytes: 1, FetchTimeout: 1})
	testkit.WantError(t, err, "a Unix socket allows at most")
}

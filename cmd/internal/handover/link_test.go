package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// newLinkedPair returns the two ends of a link, the earlier process's first.
func newLinkedPair(t *testing.T) (earlier, later *Link) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	server, _ := takeOver(t, path)
	served := make(chan *Link, 1)
	go func() {
		l, err := server.Serve(context.Background(), Config{Listeners: &Listeners{}})
		if err != nil {
			t.Error(err)
		}
		served <- l
	}()
	next, later := takeOver(t, path)
	next.Close()
	earlier = <-served
	t.Cleanup(func() { earlier.Close(); later.Close() })
	return earlier, later
}

// sendUntilAccepted sends a message that must fit. It sends again a message that was dropped because the host was
// busy.
func sendUntilAccepted(t *testing.T, l *Link, b []byte) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		switch err := l.Send(b); {
		case err == nil:
			return
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end):
			t.Fatal(len(b), err)
		}
	}
}

// TestLink sends messages of any size up to the maximum in both directions, whole.
func TestLink(t *testing.T) {
	earlier, later := newLinkedPair(t)
	for _, n := range []int{0, 1, 5000, MaxMessage} {
		for _, way := range [][2]*Link{{earlier, later}, {later, earlier}} {
			want := bytes.Repeat([]byte("x"), n)
			sendUntilAccepted(t, way[0], want)
			if got, err := way[1].Receive(); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes: %d came, %v", n, len(got), err)
			}
		}
	}
	if err := earlier.Send(make([]byte, MaxMessage+1)); err == nil {
		t.Error("a message above the limit was sent")
	}
}

// TestLinkSkips checks that Receive skips other packets: the handover's own, and those of another
// version.
func TestLinkSkips(t *testing.T) {
	earlier, later := newLinkedPair(t)
	testkit.NoError(t, send(earlier.conn, packet{Step: "stopped"}))
	for _, b := range [][]byte{{2, 'x'}, append([]byte{linkMessage}, make([]byte, MaxMessage+1)...)} {
		if _, err := earlier.conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	sendUntilAccepted(t, earlier, []byte("message"))
	if got, err := later.Receive(); err != nil || string(got) != "message" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLinkEnds checks that one end's unread messages, and its close, end the link for the other.
func TestLinkEnds(t *testing.T) {
	earlier, later := newLinkedPair(t)
	sendUntilAccepted(t, later, []byte("unread"))
	earlier.Close()
	if _, err := later.Receive(); err != io.EOF {
		t.Errorf("Receive: %v", err)
	}
	if later.Send(nil) == nil {
		t.Error("a message without a receiver was sent")
	}
	if _, err := earlier.Receive(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive on a closed link: %v", err)
	}
}

// TestLinkSendDropsWhenBlocked checks that a process that reads nothing does not block the other,
// and later receives the messages that fit.
func TestLinkSendDropsWhenBlocked(t *testing.T) {
	earlier, later := newLinkedPair(t)
	sendUntilAccepted(t, later, make([]byte, MaxMessage))
	sent := 1
	for later.Send(make([]byte, MaxMessage)) == nil {
		sent++
	}
	for range sent {
		if got, err := earlier.Receive(); err != nil || len(got) != MaxMessage {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	sendUntilAccepted(t, later, []byte("again"))
	if got, err := earlier.Receive(); err != nil || string(got) != "again" {
		t.Errorf("%q, %v", got, err)
	}
	var none *Link
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// linked are the two ends of a link, the earlier process's first.
func linked(t *testing.T) (earlier, later *Link) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	c, err := Begin(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	post, _, err := c.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan *Link, 1)
	go func() {
		l, err := post.Serve(context.Background(), Config{Doors: &Doors{}})
		if err != nil {
			t.Error(err)
		}
		served <- l
	}()
	if c, err = Begin(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	next, later, err := c.Finish(t.Context())
	if err != nil || later == nil {
		t.Fatal(later, err)
	}
	next.Close()
	earlier = <-served
	t.Cleanup(func() { earlier.Close(); later.Close() })
	return earlier, later
}

// TestLink: words of any size up to the greatest go both ways, whole.
func TestLink(t *testing.T) {
	earlier, later := linked(t)
	for _, n := range []int{0, 1, 5000, MaxWord} {
		for _, way := range [][2]*Link{{earlier, later}, {later, earlier}} {
			want := bytes.Repeat([]byte("x"), n)
			if err := way[0].Send(want); err != nil {
				t.Fatal(n, err)
			}
			if got, err := way[1].Receive(); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes: %d came, %v", n, len(got), err)
			}
		}
	}
	if err := earlier.Send(make([]byte, MaxWord+1)); err == nil {
		t.Error("too long a word")
	}
}

// TestLinkSkips what is no word: the hand-over's own, and what another version
// may say.
func TestLinkSkips(t *testing.T) {
	earlier, later := linked(t)
	if err := send(earlier.conn, message{Step: "left"}); err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{{2, 'x'}, append([]byte{word}, make([]byte, MaxWord+1)...)} {
		if _, err := earlier.conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := earlier.Send([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if got, err := later.Receive(); err != nil || string(got) != "word" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLinkEnds: what one end leaves unread, and its end, is the end for the other.
func TestLinkEnds(t *testing.T) {
	earlier, later := linked(t)
	if err := later.Send([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	earlier.Close()
	if _, err := later.Receive(); err != io.EOF {
		t.Errorf("Receive: %v", err)
	}
	if later.Send(nil) == nil {
		t.Error("a word to nobody")
	}
	if _, err := earlier.Receive(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive on a closed link: %v", err)
	}
}

// TestLinkStands: a process that takes nothing holds up nobody, and gets what
// there was room for once it goes on.
func TestLinkStands(t *testing.T) {
	earlier, later := linked(t)
	sent := 0
	for tries := 0; sent == 0 && tries < 10; tries++ { // on a busy machine a word may be late where there is room
		for later.Send(make([]byte, MaxWord)) == nil {
			sent++
		}
	}
	if sent == 0 {
		t.Fatal("no room at all")
	}
	for range sent {
		if got, err := earlier.Receive(); err != nil || len(got) != MaxWord {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if err := later.Send([]byte("again")); err != nil {
		t.Fatal(err)
	}
	if got, err := earlier.Receive(); err != nil || string(got) != "again" {
		t.Errorf("%q, %v", got, err)
	}
	var none *Link
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

package kvconnector

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"reflect"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// serve runs a Server on a real socket, whose block b has the bytes b and b+1.
func serve(t *testing.T, engine string) (address *net.TCPAddr, done chan string, stop func()) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	done = make(chan string, 1)
	s := TransferServer{
		EngineID:   engine,
		BlockBytes: 2,
		Read: func(_ context.Context, blocks []int) (all []byte, err error) {
			for _, b := range blocks {
				if b > 999 {
					return nil, errors.New("no such block")
				}
				all = append(all, byte(b), byte(b+1))
			}
			return all, nil
		},
		Done: func(_ context.Context, request string) { done <- request },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	return l.Addr().(*net.TCPAddr), done, func() { cancel(); testkit.NoError(t, <-ended) }
}

func newAgents() *Agents {
	return &Agents{HandshakeTimeout: time.Minute, Dial: func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}}
}

func TestPull(t *testing.T) {
	at, done, stop := serve(t, "A")
	defer stop()
	agents := newAgents()
	p := &Params{EngineID: "A", RequestID: "r", Host: "127.0.0.1", Port: at.Port}
	blocks := make([]int, 2*maxRead+5)
	for i := range blocks {
		blocks[i] = i
	}
	got, err := agents.Pull(t.Context(), p, blocks, 2)
	testkit.NoError(t, err)
	for i, b := range blocks {
		if got[2*i] != byte(b) || got[2*i+1] != byte(b+1) {
			t.Fatalf("block %d is %d", b, got[2*i:][:2])
		}
	}
	if request := <-done; len(got) != 2*len(blocks) || request != "r" {
		t.Errorf("%d bytes, request %q", len(got), request)
	}
	_, err = agents.Pull(t.Context(), p, []int{1000}, 2)
	testkit.WantError(t, err, "no such block")
	_, err = agents.Pull(t.Context(), p, []int{1}, 3)
	testkit.WantError(t, err, "2 bytes for 1 blocks of 3")
	_, err = agents.Pull(t.Context(), &Params{EngineID: "B", Host: p.Host, Port: p.Port}, []int{1}, 2)
	if testkit.WantError(t, err, `this is engine "A", not "B"`); !errors.Is(err, ErrHandshake) {
		t.Errorf("%v is not a failed handshake", err)
	}
}

// failing is a listener that fails once.
type failing struct {
	net.Listener
	failed bool
}

func (l *failing) Accept() (net.Conn, error) {
	if !l.failed {
		l.failed = true
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

// A process that runs out of descriptors for a while serves again.
func TestServerGoesOnAfterFailedAccept(t *testing.T) {
	l := &failing{Listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))}
	s := TransferServer{EngineID: "A", BlockBytes: 2}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	conn := testkit.Must(net.Dial("tcp", l.Addr().String()))
	defer conn.Close()
	if process, err := ask(conn, message{Hello: "A"}, 0); err != nil || len(process) == 0 {
		t.Errorf("%q, %v", process, err)
	}
	cancel()
	testkit.NoError(t, <-ended)
}

// A server closes a connection that sends what is no message.
func TestServerRefuses(t *testing.T) {
	at, _, stop := serve(t, "A")
	defer stop()
	for name, bytes := range map[string][]byte{
		"a long message": {0xff, 0xff, 0xff, 0xff},
		"no JSON":        {0, 0, 0, 1, 'x'},
		"a wrong type":   append([]byte{0, 0, 0, 10}, `{"read":1}`...),
	} {
		conn := testkit.Must(net.Dial("tcp", at.String()))
		testkit.Must(conn.Write(bytes))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		conn.Close()
	}
	conn := testkit.Must(net.Dial("tcp", at.String()))
	defer conn.Close()
	for name, m := range map[string]message{"nothing": {}, "too many blocks": {Read: make([]int, maxRead+1)}} {
		if _, err := ask(conn, m, 0); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMessagesAreBounded checks that large blocks do not make large answers.
func TestMessagesAreBounded(t *testing.T) {
	for blockBytes, want := range map[int]int{2: maxRead, maxBody / 3: 3, maxBody: 1, 2 * maxBody: 1} {
		s := TransferServer{BlockBytes: blockBytes, Read: func(_ context.Context, blocks []int) ([]byte, error) { return make([]byte, len(blocks)), nil }}
		if body, err := s.answer(t.Context(), message{Read: make([]int, want)}, ""); err != nil || len(body) != want {
			t.Errorf("%d blocks of %d bytes: %v", want, blockBytes, err)
		}
		_, err := s.answer(t.Context(), message{Read: make([]int, want+1)}, "")
		testkit.WantError(t, err, fmt.Sprintf("%d blocks, more than %d", want+1, want))
	}
}

// TestPullFromServerThatFreezesAfterIt: a pull that has its bytes does not wait for the answer to its
// notification.
func TestPullFromServerThatFreezesAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		go func() { // answers everything but the notification
			for {
				m, err := readMessage(there)
				if err != nil || m.Done != "" {
					return
				}
				if writeAnswer(there, make([]byte, 2*len(m.Read)), nil) != nil {
					return
				}
			}
		}()
		agents := &Agents{HandshakeTimeout: time.Second, Dial: func(context.Context, string) (net.Conn, error) { return here, nil }}
		got, err := agents.Pull(t.Context(), &Params{EngineID: "A", RequestID: "r", Host: "127.0.0.1", Port: 1}, []int{1, 2}, 2)
		if err != nil || len(got) != 4 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// FuzzReadMessage checks that what readMessage accepts survives writeMessage.
func FuzzReadMessage(f *testing.F) {
	f.Add([]byte(`{"hello":"A"}`))
	f.Add([]byte(`{"read":[1,2,3]}`))
	f.Add([]byte(`{"done":"r","x":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
		m, err := readMessage(bytes.NewReader(frame))
		if err != nil {
			return
		}
		var again bytes.Buffer
		testkit.NoError(t, writeMessage(&again, m))
		if again.Len() > maxMessage+4 {
			return // escapes can make it longer
		}
		if got, err := readMessage(&again); err != nil || len(m.Read) > 0 && !reflect.DeepEqual(got, m) || got.Hello != m.Hello || got.Done != m.Done {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

// FuzzReadAnswer checks that readAnswer never returns more than was sent, nor panics.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 7, 8})
	f.Add([]byte{1, 0, 0, 0, 1, 'x'})
	f.Add([]byte{0, 0xff, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if body, err := readAnswer(bytes.NewReader(b), 1<<10); err == nil && len(body) > len(b)-5 {
			t.Fatalf("%d bytes of %d", len(body), len(b))
		}
	})
}

package processes

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
)

// leaveUnread opens n requests that the engine answers with a flood, and reads nothing of the answers. It
// waits until the engine gets no more of them (some may be refused while it is busy) and the replica counts
// as idle, and reports whether another client is served then.
func (f *attackedFleet) leaveUnread(port string, n int, oneConnection bool, attack []byte) (string, error) {
	e := f.engines[0]
	before := e.floods.Load()
	if oneConnection {
		conn, err := attacker.Dial("tcp", f.ports[port])
		if err != nil {
			return "", err
		}
		defer conn.Close()
		if err := openStreams(conn, n, attack); err != nil {
			return "", err
		}
	} else {
		conns, closeAll, err := f.open(attacker, port, n, attack)
		defer closeAll()
		if err != nil {
			return "", err
		}
		for _, c := range conns {
			c.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
	}
	got, last := 0, time.Now() // when the engine got one of them
	for deadline := time.Now().Add(2 * attackPatience); ; time.Sleep(100 * time.Millisecond) {
		s, err := f.Status(f.Admin)
		if err != nil {
			return "", err
		}
		r := harness.Find(s, "r0")
		if now := int(e.floods.Load() - before); now > got {
			got, last = now, time.Now()
		}
		since := time.Since(last).Seconds() - 1
		if got > n/4 && r.ReportAge != nil && *r.ReportAge < since && r.Running+r.Waiting == 0 && r.Held+r.Promised == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("the engine has got %d requests, of which %d run and %d wait", got, r.Running, r.Waiting), nil
		}
	}
	f.T.Logf("of %d requests at %s the engine has got %d", n, port, got)
	for range 10 {
		if err := f.served(port); err != nil {
			f.T.Logf("another client at %s: %v", port, err)
			return "another client is not served", nil
		}
	}
	return "the replica is idle, and another client is served", nil
}

// openStreams sends an attack n times on one HTTP/2 connection, which takes no byte of any answer.
func openStreams(conn net.Conn, n int, attack []byte) error {
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(attack)))
	if err != nil {
		return err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}); err != nil {
		return err
	}
	var header bytes.Buffer
	coder := hpack.NewEncoder(&header)
	for i := range n {
		header.Reset()
		for _, h := range [][2]string{{":method", r.Method}, {":scheme", "http"}, {":authority", r.Host}, {":path", r.RequestURI}} {
			if err := coder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				return err
			}
		}
		id := uint32(2*i + 1)
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: header.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
		if err := framer.WriteData(id, true, body); err != nil {
			return err
		}
	}
	// What the server sends beside answers must not stop it.
	go io.Copy(io.Discard, conn)
	return nil
}

// flood sends n requests at once that hang in the engine, and reports whether more than most of them reach it, and
// whether the rest are refused because there are too many.
func (f *attackedFleet) flood(port string, n, most int, attack []byte) (string, error) {
	e := f.engines[0]
	conns, closeAll, err := f.open(attacker, port, n, attack)
	defer func() {
		closeAll()
		for deadline := time.Now().Add(attackPatience); e.hanging.Load() > 0 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if err != nil {
		return "", err
	}
	answers := make(chan int, n)
	for _, c := range conns {
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return
			}
			answers <- resp.StatusCode
		}()
	}
	deadline := time.Now().Add(attackPatience)
	for int(e.hanging.Load())+len(answers) < n && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	hanging, refused := int(e.hanging.Load()), 0
	for range len(answers) {
		if <-answers == http.StatusTooManyRequests {
			refused++
		}
	}
	f.T.Logf("%d requests at %s: the engine has %d, %d are refused", n, port, hanging, refused)
	if hanging > most || hanging+refused < n {
		return fmt.Sprintf("%d reach the engine, and %d are refused with 429", hanging, refused), nil
	}
	return fmt.Sprintf("at most %d reach the engine, and the rest is refused with 429", most), nil
}

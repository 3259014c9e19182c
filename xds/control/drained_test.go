package control

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestPolicyRefusalArrives: what is wrong with a push is told to one who sends the whole
// module before looking, however often and however large.
func TestPolicyRefusalArrives(t *testing.T) {
	on := start(t, Config{Rules: rules(), Replicas: newFleet(t, 1).list, Admitter: new(notary)})
	off := start(t, Config{Rules: rules(), Replicas: newFleet(t, 1).list})
	body := `{"module":"` + base64.StdEncoding.EncodeToString(make([]byte, 2<<20)) + `","signature":"eA=="}`
	for range 10 {
		for _, c := range []struct {
			to                      *running
			query, host, head, want string
		}{
			{on, "slot=nope", "", "", "slot"},
			{on, "slot=place&goal=nope", "", "", "goal"},
			{on, "slot=place&goal=canary&permille=5000", "", "", "permille"},
			{on, "slot=place", "", "text/plain", "send the header"},
			{on, "slot=place", "elsewhere", "", "ask for localhost"},
			{on, "slot=place", "", "", "signed by nobody"},
			{off, "slot=place", "", "", "policies.keys"},
		} {
			if c.host == "" {
				c.host = c.to.AdminAddr().String()
			}
			if c.head == "" {
				c.head = "application/json"
			}
			head := fmt.Sprintf("POST /policies/push?%s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", c.query, c.host, c.head, len(body))
			code, text, err := sendAll(c.to.AdminAddr().String(), head, body)
			if err != nil || code < 400 || !strings.Contains(text, c.want) {
				t.Fatalf("%s: %d %s, %v", c.query, code, text, err)
			}
		}
	}
}

// sendAll sends a request to its end, and only then reads the answer.
func sendAll(addr, head, body string) (code int, text string, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, head); err != nil {
		return 0, "", err
	}
	for len(body) > 0 {
		n := min(len(body), 64<<10)
		if _, err := io.WriteString(c, body[:n]); err != nil {
			return 0, "", fmt.Errorf("%d bytes are left to send: %w", len(body), err)
		}
		body = body[n:]
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var p problem
	err = json.NewDecoder(resp.Body).Decode(&p)
	return resp.StatusCode, p.Error, err
}

// TestDrainedIsBounded: what is left of a body is read up to a size, and no more of one
// that did not come in time.
func TestDrainedIsBounded(t *testing.T) {
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusBadRequest, problem{"no"}) })
	long := &upload{}
	drained(10_000, refuse).ServeHTTP(deadlines{httptest.NewRecorder()}, httptest.NewRequest(http.MethodPost, "/", long))
	if long.n < 10_000 || long.n > 100_000 {
		t.Errorf("%d bytes", long.n)
	}
	late := &upload{err: os.ErrDeadlineExceeded}
	slow := httptest.NewRequest(http.MethodPost, "/", late)
	slow.Header.Set("content-type", "application/json")
	drained(10_000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := readWithin(w, r, time.Second)
		answer(w, codeOf(err), problem{err.Error()})
	})).ServeHTTP(deadlines{httptest.NewRecorder()}, slow)
	if late.reads > 1 {
		t.Errorf("read %d times", late.reads)
	}
}

// upload is a body without an end, or that fails.
type upload struct {
	n, reads int
	err      error
}

func (u *upload) Read(p []byte) (int, error) {
	u.reads++
	if u.err != nil {
		return 0, u.err
	}
	u.n += len(p)
	return len(p), nil
}

// deadlines is a writer that takes them.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error { return nil }

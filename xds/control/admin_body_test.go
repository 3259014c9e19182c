package control

import (
	"bufio"
	"context"
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
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestPushRefusalReachesClient checks that a client which sends the whole
// module before it reads the response gets the reason of a refusal, however
// often it tries and however large the module is.
func TestPushRefusalReachesClient(t *testing.T) {
	on := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list, Admitter: new(fakeAdmitter)})
	off := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list})
	body := `{"module":"` + base64.StdEncoding.EncodeToString(make([]byte, 2<<20)) + `","signature":"eA=="}`
	for range 10 {
		for _, c := range []struct {
			to                      *runningControl
			query, host, head, want string
		}{
			{on, "slot=nope", "", "", "slot"},
			{on, "slot=place&goal=nope", "", "", "goal"},
			{on, "slot=place&goal=canary&permille=5000", "", "", "permille"},
			{on, "slot=place", "", "text/plain", "send the header"},
			{on, "slot=place", "elsewhere", "", "use localhost"},
			{on, "slot=place", "", "", "unknown signer"},
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

// sendAll sends a request to its end, and only then reads the response.
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
			return 0, "", fmt.Errorf("%d bytes not sent: %w", len(body), err)
		}
		body = body[n:]
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var p errorBody
	err = json.NewDecoder(resp.Body).Decode(&p)
	return resp.StatusCode, p.Error, err
}

// TestDrainBodyIsBounded checks that the rest of a body is read up to a size
// and within a time that fits into the server's timeout, and not at all after a
// read timeout.
func TestDrainBodyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(pushTimeout)
			writeJSON(w, http.StatusBadRequest, errorBody{"no"})
		})
		begun, long, w := time.Now(), &fakeBody{}, newDeadlines()
		drainBody(10_000, refuse).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", long))
		if long.n < 10_000 || long.n > 100_000 {
			t.Errorf("%d bytes", long.n)
		}
		if len(w.read) != 1 || !w.read[0].After(time.Now()) || w.read[0].Sub(begun) >= adminTimeout {
			t.Errorf("push of %v: drained until %v", pushTimeout, w.read)
		}
		late := &fakeBody{err: os.ErrDeadlineExceeded}
		slow := httptest.NewRequest(http.MethodPost, "/", late)
		slow.Header.Set("content-type", "application/json")
		w = newDeadlines()
		drainBody(10_000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := readWithin(w, r, time.Second)
			writeJSON(w, statusCode(err), errorBody{err.Error()})
		})).ServeHTTP(w, slow)
		if late.reads > 1 || len(w.read) != 1 || w.read[0] != time.Now().Add(time.Second) {
			t.Errorf("read %d times, until %v", late.reads, w.read)
		}
	})
}

// TestDrainBodyExpectContinue checks that a body with Expect: 100-continue is
// drained only if the handler has read some of it.
func TestDrainBodyExpectContinue(t *testing.T) {
	for _, begun := range []bool{false, true} {
		body, w := &fakeBody{}, newDeadlines()
		r := httptest.NewRequest(http.MethodPost, "/", body)
		r.Header.Set("Expect", "100-continue")
		drainBody(10_000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if begun {
				_, _ = r.Body.Read(make([]byte, 1))
			}
			writeJSON(w, http.StatusBadRequest, errorBody{"no"})
		})).ServeHTTP(w, r)
		if begun != (body.n > 10_000) || begun != (len(w.read) == 1) {
			t.Errorf("read by handler %t: drained %d bytes until %v", begun, body.n, w.read)
		}
	}
}

// TestUploadEndsWithPush checks that an upload which waited for its place has
// only the push's remaining time.
func TestUploadEndsWithPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Control{uploads: make(chan struct{}, 1)}
		for _, waited := range []time.Duration{0, pushTimeout - time.Second} {
			begun := time.Now()
			c.uploads <- struct{}{}
			time.AfterFunc(waited, func() { <-c.uploads })
			ctx, cancel := context.WithTimeout(t.Context(), pushTimeout)
			w, r := newDeadlines(), httptest.NewRequest(http.MethodPost, "/", &fakeBody{err: os.ErrDeadlineExceeded})
			r.Header.Set("content-type", "application/json")
			_, err := c.readUpload(ctx, w, r)
			cancel()
			if want := begun.Add(min(waited+uploadTimeout, pushTimeout)); err == nil || len(w.read) != 1 || w.read[0] != want {
				t.Errorf("after %v: until %v, want %v; %v", waited, w.read, want, err)
			}
		}
	})
}

// TestRefusalWithExpectContinue checks that a client with Expect: 100-continue
// is refused without a 100, however long the response, and that the body of one
// that got a 100 is read to its end.
func TestRefusalWithExpectContinue(t *testing.T) {
	reason := strings.Repeat("no ", 3000)
	srv := httptest.NewServer(drainBody(maxPush, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/read":
			_, _ = r.Body.Read(make([]byte, 1))
			writeJSON(w, http.StatusBadRequest, errorBody{"no"})
		case "/long":
			writeJSON(w, http.StatusBadRequest, errorBody{reason})
		default:
			writeJSON(w, http.StatusBadRequest, errorBody{"no"})
		}
	})))
	defer srv.Close()
	body := strings.Repeat("x", 2<<20)
	for path, want := range map[string]string{"/short": "no", "/long": reason, "/read": "no"} {
		c := testkit.Must(net.Dial("tcp", srv.Listener.Addr().String()))
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil { // it would block forever
			t.Fatal(err)
		}
		testkit.Must(fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", path, len(body)))
		from := bufio.NewReader(c)
		resp, err := http.ReadResponse(from, nil)
		if err == nil && path == "/read" {
			if resp.StatusCode != http.StatusContinue {
				t.Fatalf("%s: %s", path, resp.Status)
			}
			if _, err := io.WriteString(c, body); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			resp, err = http.ReadResponse(from, nil)
		}
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("%s: %+v, %v", path, resp, err)
		}
		var p errorBody
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || p.Error != want {
			t.Errorf("%s: %.20q, %v", path, p.Error, err)
		}
	}
}

// fakeBody is a body without an end, or one that fails.
type fakeBody struct {
	n, reads int
	err      error
}

func (u *fakeBody) Read(p []byte) (int, error) {
	u.reads++
	if u.err != nil {
		return 0, u.err
	}
	u.n += len(p)
	return len(p), nil
}

// deadlineRecorder is a ResponseWriter that records the read deadline.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	read []time.Time
}

func newDeadlines() *deadlineRecorder {
	return &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
}

func (d *deadlineRecorder) SetReadDeadline(at time.Time) error {
	d.read = append(d.read, at)
	return nil
}

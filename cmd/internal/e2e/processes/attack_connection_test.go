package processes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/localuser"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// attackPatience is how long an attacker waits for an answer, and a client for service.
const attackPatience = 15 * time.Second

// attacker dials from an address of its own, so that bounds per address apply to it.
var attacker = net.Dialer{Timeout: attackPatience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}

// dial connects to a port: host:port, or @NAME of an abstract Unix socket.
func dial(d net.Dialer, address string) (net.Conn, error) {
	network := localuser.Network(address)
	if network == "unix" {
		d.LocalAddr = nil
	}
	return d.Dial(network, address)
}

// sentinel follows an attack on a connection that is still open. It is answered 404, and last.
const sentinel = "GET /sentinel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

// exchange sends an attack on a connection of its own and returns what came of it: the statuses
// of the answers. Whether the connection stays open afterwards does not matter: the sentinel shows
// that what follows the attack is not taken for a request of its own.
func exchange(address string, attack []byte, halfClose bool) (string, error) {
	conn, err := dial(attacker, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(attackPatience))
	// A server may answer, and close, before it has read everything.
	go func() {
		conn.Write(attack)
		if halfClose {
			conn.(interface{ CloseWrite() error }).CloseWrite()
		}
	}()
	in := bufio.NewReader(conn)
	var answers []string
	last, sent := 0, false
	for {
		// The kinds of requests matter to the length of an answer only for HEAD.
		resp, err := http.ReadResponse(in, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return strings.Join(append(answers, "waits"), ", "), nil
		case err != nil && sent && last == http.StatusNotFound:
			return strings.Join(answers[:len(answers)-1], ", "), nil // without the sentinel's
		case err != nil && len(answers) == 0:
			return "no answer", nil
		case err != nil:
			return strings.Join(answers, ", "), nil
		case resp.StatusCode == http.StatusContinue:
			continue
		}
		last = resp.StatusCode
		answers = append(answers, fmt.Sprint(last))
		for name, values := range resp.Header {
			if strings.Contains(strings.Join(values, " "), evil) {
				answers[len(answers)-1] += " with evil in " + strings.ToLower(name)
			}
		}
		if sent || halfClose {
			continue
		}
		if resp.Close {
			return strings.Join(answers, ", "), nil // a client reads no further
		}
		sent = true
		io.WriteString(conn, sentinel)
	}
}

// served returns why an ordinary client of a port is not served.
func (f *attackedFleet) served(port string) error {
	address := f.ports[port]
	client := http.Client{Transport: f.HTTP.Transport, Timeout: attackPatience}
	get := func(path string) error {
		resp, err := client.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
	switch port {
	case "front", "proxy", "envoy":
		resp, err := client.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		return nil
	case "admin", "front-admin", "proxy-admin":
		return get("/healthz")
	case "kv":
		return refusedTicket(address)
	}
	conn, err := dial(net.Dialer{Timeout: attackPatience}, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The preface of HTTP/2 and empty SETTINGS are answered with SETTINGS.
	conn.SetDeadline(time.Now().Add(attackPatience))
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 9))
	return err
}

// refusedTicket presents an unknown ticket to a KV port, and returns nil if it is refused.
func refusedTicket(address string) error {
	conn, err := net.DialTimeout("tcp", address, attackPatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(attackPatience))
	hello, err := lease.Hello{Receiver: "r1"}.Append(nil)
	if err != nil {
		return err
	}
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	if _, _, err = lease.ReadWelcome(conn); !errors.Is(err, transport.ErrRefused) {
		return fmt.Errorf("an unknown ticket is not refused: %w", err)
	}
	return nil
}

// request returns the bytes of an attack that is written as lines: they end with CRLF, unless a
// line ends with a backslash, and the header ends with an empty line if none is written. \r, \n,
// \t, \\ and \x00 stand for those bytes, {3×ab} for ababab, and an asterisk for the length of
// what follows the header.
func request(text string) ([]byte, error) {
	var out bytes.Buffer
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		rest, joined := strings.CutSuffix(line, `\`)
		out.WriteString(rest)
		if !joined && i < len(lines)-1 {
			out.WriteString("\r\n")
		}
	}
	if !strings.Contains(out.String(), "\r\n\r\n") && !strings.HasSuffix(text, `\`) {
		out.WriteString("\r\n\r\n")
	}
	attack, err := expand(out.String())
	_, body, _ := bytes.Cut(attack, []byte("\r\n\r\n"))
	return bytes.Replace(attack, []byte("Content-Length: *"), fmt.Appendf(nil, "Content-Length: %d", len(body)), 1), err
}

// expand replaces the escapes and repetitions of a text.
func expand(text string) ([]byte, error) {
	var out bytes.Buffer
	for text != "" {
		var n int
		switch {
		case strings.HasPrefix(text, `\x`) && len(text) >= 4:
			var b byte
			if _, err := fmt.Sscanf(text[2:4], "%02x", &b); err != nil {
				return nil, err
			}
			out.WriteByte(b)
			text = text[4:]
			continue
		case text[0] == '\\' && len(text) > 1 && strings.IndexByte(`rnt\`, text[1]) >= 0:
			out.WriteByte("\r\n\t\\"[strings.IndexByte(`rnt\`, text[1])])
			text = text[2:]
			continue
		case text[0] == '{':
			if _, err := fmt.Sscanf(text, "{%d×", &n); err == nil {
				_, rest, _ := strings.Cut(text, "×")
				unit, after, found := strings.Cut(rest, "}")
				if !found {
					return nil, fmt.Errorf("%.20s: no } ends the repetition", text)
				}
				out.WriteString(strings.Repeat(unit, n))
				text = after
				continue
			}
		}
		out.WriteByte(text[0])
		text = text[1:]
	}
	return out.Bytes(), nil
}

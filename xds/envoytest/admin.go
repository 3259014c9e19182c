package envoytest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// listenerWithin bounds the wait for a listener that arrives over xDS.
const listenerWithin = 20 * time.Second

// Get requests a path of the admin interface and returns the body.
func (p *Process) Get(path string) []byte {
	p.t.Helper()
	body, err := p.get(path)
	if err != nil {
		p.t.Fatalf("envoytest: admin: %v", err)
	}
	return body
}

// Listener returns the address, host:port, of the named listener. It waits until the
// listener exists.
func (p *Process) Listener(name string) string {
	p.t.Helper()
	var address string
	p.waitUntil("listening as "+name, listenerWithin, func() error {
		body, err := p.get("/listeners?format=json")
		if err != nil {
			return err
		}
		var list struct {
			Statuses []struct {
				Name    string `json:"name"`
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if err := json.Unmarshal(body, &list); err != nil {
			return fmt.Errorf("/listeners: %w", err)
		}
		for _, l := range list.Statuses {
			if l.Name == name && l.Address.Socket.Port != 0 {
				address = net.JoinHostPort(l.Address.Socket.Address, strconv.Itoa(l.Address.Socket.Port))
				return nil
			}
		}
		return fmt.Errorf("listeners are %s", body)
	})
	return address
}

// Stats returns the counters and gauges whose names match a regular
// expression, unused ones included; histograms and texts are left out.
func (p *Process) Stats(filter string) map[string]int64 {
	p.t.Helper()
	out := make(map[string]int64)
	for line := range strings.Lines(string(p.Get("/stats?filter=" + url.QueryEscape(filter)))) {
		// Names may hold colons; values do not.
		if i := strings.LastIndex(line, ": "); i > 0 {
			if n, err := strconv.ParseInt(strings.TrimSpace(line[i+2:]), 10, 64); err == nil {
				out[line[:i]] = n
			}
		}
	}
	return out
}

// Clusters returns the /clusters page: every host with its health, weight and
// counts.
func (p *Process) Clusters() string {
	p.t.Helper()
	return string(p.Get("/clusters"))
}

// ConfigDump returns the whole configuration as JSON, endpoints included.
func (p *Process) ConfigDump() []byte {
	p.t.Helper()
	return p.Get("/config_dump?include_eds")
}

package attach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// TLSFiles are the PEM files of a gRPC client's mutual TLS with the control plane.
type TLSFiles struct {
	Cert, Key, CA string // all, or none for plain text
}

// GRPCConfig is the input of GRPCBootstrap.
type GRPCConfig struct {
	// Control lists the control planes as host:port; gRPC uses the first that
	// answers. At least one is required.
	Control []string
	TLS     TLSFiles
	// Bootstrap is the client's present bootstrap; its default control plane and
	// its other authorities are kept. nil means that Cascade is the client's only
	// control plane, and then NodeID is required.
	Bootstrap []byte
	NodeID    string
}

// server is an entry of xds_servers.
type server struct {
	URI      string        `json:"server_uri"`
	Creds    []credentials `json:"channel_creds"`
	Features []string      `json:"server_features"`
}

type credentials struct {
	Type   string          `json:"type"`
	Config *certificateSet `json:"config,omitempty"`
}

type certificateSet struct {
	Cert string `json:"certificate_file"`
	Key  string `json:"private_key_file"`
	CA   string `json:"ca_certificate_file"`
}

// authority is an entry of authorities.
type authority struct {
	Template string   `json:"client_listener_resource_name_template"`
	Servers  []server `json:"xds_servers"`
}

// GRPCBootstrap renders a gRPC client's bootstrap in which Cascade is an authority: the
// client dials xds://cascade/<model>; all other targets resolve as before.
func GRPCBootstrap(c GRPCConfig) ([]byte, error) {
	out, err := c.render()
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return out, nil
}

func (c GRPCConfig) render() ([]byte, error) {
	if len(c.Control) == 0 {
		return nil, fmt.Errorf("control: give the control plane's host:port")
	}
	creds := credentials{Type: "insecure"}
	if c.TLS != (TLSFiles{}) {
		if c.TLS.Cert == "" || c.TLS.Key == "" || c.TLS.CA == "" {
			return nil, fmt.Errorf("tls: give cert, key and ca, or none of them")
		}
		creds = credentials{"tls", &certificateSet{c.TLS.Cert, c.TLS.Key, c.TLS.CA}}
	}
	var servers []server
	for _, a := range c.Control {
		if _, _, err := splitHostPort(a); err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
		servers = append(servers, server{a, []credentials{creds}, []string{"xds_v3"}})
	}
	boot := make(map[string]json.RawMessage)
	if c.Bootstrap != nil {
		if err := json.Unmarshal(c.Bootstrap, &boot); err != nil {
			return nil, fmt.Errorf("the client's bootstrap: %w", err)
		}
		if boot == nil {
			return nil, errors.New("the client's bootstrap is null: give an object, or no bootstrap")
		}
	} else {
		if c.NodeID == "" {
			return nil, fmt.Errorf("node id: every client needs one of its own")
		}
		node := struct {
			ID string `json:"id"`
		}{c.NodeID}
		if err := setJSON(boot, "node", node); err != nil {
			return nil, err
		}
		if err := setJSON(boot, "xds_servers", servers); err != nil {
			return nil, err
		}
	}
	var authorities map[string]json.RawMessage
	if raw, ok := boot["authorities"]; ok {
		if err := json.Unmarshal(raw, &authorities); err != nil {
			return nil, fmt.Errorf("the client's bootstrap: authorities: %w", err)
		}
	}
	if authorities == nil { // none, or null
		authorities = make(map[string]json.RawMessage)
	}
	if err := setJSON(authorities, resources.Authority, authority{resources.FederatedListenerTemplate, servers}); err != nil {
		return nil, err
	}
	if err := setJSON(boot, "authorities", authorities); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(boot)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func setJSON(m map[string]json.RawMessage, key string, v any) error {
	raw, err := json.Marshal(v)
	m[key] = raw
	return err
}

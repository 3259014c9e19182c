package engineinfo

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// MaxConnectorText bounds each text of a KVConnector in bytes.
const MaxConnectorText = 128

// Cascade is the name that a connector gives itself whose KV travels over Cascade's transports.
const Cascade = api.Connector

// KVConnector is how an engine that keeps its own KV cache hands KV over to another one. The
// zero value knows nothing. Two engines need the same one: a connector refuses all others, or
// reads what it does not understand.
type KVConnector struct {
	Presence Presence
	Name     string // of its protocol; "" if unknown
	Version  string // of the engine; "" if unknown
	Layout   string // of the KV blocks; "" if unknown
}

// KVConnector returns what is known of the engine's connector.
func (i Info) KVConnector() KVConnector {
	return KVConnector{i.Connector, i.ConnectorName, i.Version, i.Layout}.Bounded()
}

// Bounded returns c with its texts cut to MaxConnectorText, and with an unknown presence if it is
// none of this version.
func (c KVConnector) Bounded() KVConnector {
	if c.Presence > Present {
		c.Presence = Unknown
	}
	for _, text := range []*string{&c.Name, &c.Version, &c.Layout} {
		*text = cleantext.Truncate(*text, MaxConnectorText)
	}
	return c
}

// ErrNoConnector is returned for an engine that hands no KV over.
var ErrNoConnector = errors.New("no KV connector")

// CheckHandoff returns why an engine cannot hand KV over to another one, nil if it can as far as
// is known.
func CheckHandoff(from, to KVConnector) error {
	switch {
	case from.Presence == Absent:
		return fmt.Errorf("the holder's engine: %w", ErrNoConnector)
	case to.Presence == Absent:
		return fmt.Errorf("the target's engine: %w", ErrNoConnector)
	}
	for _, s := range [...]struct{ what, from, to string }{
		{"KV connectors", from.Name, to.Name}, {"engine versions", from.Version, to.Version}, {"KV layouts", from.Layout, to.Layout},
	} {
		if s.from != "" && s.to != "" && s.from != s.to {
			return fmt.Errorf("different %s: %q at the holder, %q at the target", s.what, s.from, s.to)
		}
	}
	return nil
}

package wiring

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/xds/control"
)

// ownFields differ between control planes that share a file: they name one control plane, by ${POD_IP} and
// ${POD_NAME}, and list its peers.
var ownFields = []string{"control.listen", "control.admin", "control.name", "control.peers"}

// Digest identifies the content of the fleet file, so that control planes can compare what
// they have read. It leaves out ownFields.
func (f *Fleet) Digest() string {
	return digestOf(f.SharedFields())
}

// SharedFields returns a digest of each field that control planes share, such as planner.period or replicas.
func (f *Fleet) SharedFields() map[string]string {
	fields := f.fields()
	maps.DeleteFunc(fields, func(name, _ string) bool { return slices.Contains(ownFields, name) })
	return fields
}

// Differences lists the fields in which two fleet files differ, sorted.
func (f *Fleet) Differences(other *Fleet) []string {
	return control.DifferentFields(f.fields(), other.fields())
}

// fields returns a digest of each field.
func (f *Fleet) fields() map[string]string {
	text, err := yaml.Marshal(f.Fleet)
	var parts map[string]any
	if err != nil || yaml.Unmarshal(text, &parts) != nil {
		return nil // cannot happen: the file was decoded from YAML
	}
	out := make(map[string]string)
	for name, value := range parts {
		section, ok := value.(map[string]any)
		if !ok {
			out[name] = digestOf(value)
		}
		for field, v := range section {
			out[name+"."+field] = digestOf(v)
		}
	}
	return out
}

// digestOf returns a short digest of a value.
func digestOf(v any) string {
	text, err := json.Marshal(v) // maps are sorted
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

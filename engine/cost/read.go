package cost

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/cascadeinfer/cascade/internal/strictjson"
)

// maxProfileBytes bounds a profile file; real ones are about 2 KiB.
const maxProfileBytes = 1 << 20

//go:embed profiles/*.json
var builtin embed.FS

// Read decodes one profile. It is strict: an unknown field, a wrong type,
// trailing data or a broken invariant is an error that names the field.
func Read(r io.Reader) (Profile, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxProfileBytes+1))
	if err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	if len(data) > maxProfileBytes {
		return Profile{}, fmt.Errorf("read profile: longer than %d bytes", maxProfileBytes)
	}
	var p Profile
	if err := strictjson.Unmarshal(data, &p); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", describe(err, data))
	}
	if p.Ranks == 0 {
		p.Ranks = 1
	}
	if err := p.Validate(); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	return p, nil
}

// describe adds the place to encoding/json's errors.
func describe(err error, data []byte) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
		return fmt.Errorf("line %d: %w", line, syntax)
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("field %q: is a %s, must be a %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return err
}

// Names lists the built-in profiles, sorted.
func Names() []string {
	files, err := builtin.ReadDir("profiles")
	if err != nil {
		panic("internal error: embedded profiles: " + err.Error())
	}
	names := make([]string, 0, len(files))
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	return names
}

// Builtin returns a built-in profile by name; the error lists the names.
func Builtin(name string) (Profile, error) {
	data, err := builtin.ReadFile(path.Join("profiles", name+".json"))
	if err != nil {
		return Profile{}, fmt.Errorf("no built-in profile %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return Read(bytes.NewReader(data))
}

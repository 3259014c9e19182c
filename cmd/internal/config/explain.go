package config

import (
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"
)

// source holds the files whose structs describe the fleet file. Their comments
// are the only documentation of the fields.
//
//go:embed config.go etcd.go groups.go kvevents.go limits.go migration.go bodies.go overload.go policies.go rdma.go
var source embed.FS

// Field describes one field of the fleet file.
type Field struct {
	// Path is the field's YAML path: "[]" stands for an element of a list.
	Path string `json:"field"`
	// Type is string, bool, integer, number, duration, object, or a list of one of these.
	Type string `json:"type"`
	// Default is the value of a field that is missing: "required" or "none" where
	// there is none.
	Default string `json:"default"`
	Unit    string `json:"unit,omitempty"`
	Meaning string `json:"meaning"`
}

// Section reports whether the field has fields of its own.
func (f Field) Section() bool { return strings.HasSuffix(f.Type, "object") }

// Fields returns all fields of the fleet file, in the order of the structs.
var Fields = sync.OnceValue(func() []Field {
	comments := parseComments()
	defaults := Fleet{Models: []Model{{}}, Replicas: []Replica{{}}, Policies: Policies{Keys: []string{""}}}
	defaults.setDefaults()
	var fields []Field
	var walk func(prefix string, t reflect.Type, v reflect.Value)
	walk = func(prefix string, t reflect.Type, v reflect.Value) {
		for i := range t.NumField() {
			sf := t.Field(i)
			name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
			if name == "-" {
				continue
			}
			f := Field{Path: prefix + name, Unit: sf.Tag.Get("unit"), Default: sf.Tag.Get("default")}
			f.Meaning = meaning(comments[t.Name()+"."+sf.Name], sf.Name, name)
			at, inner := f.Path, sf.Type
			value := v.Field(i)
			switch inner.Kind() {
			case reflect.Pointer:
				inner, value = inner.Elem(), reflect.Zero(inner.Elem())
			case reflect.Slice:
				f.Type, at, inner = "list of ", at+"[]", inner.Elem()
				if value.Len() > 0 {
					value = value.Index(0)
				} else {
					value = reflect.Zero(inner)
				}
			}
			f.Type += typeName(inner)
			switch {
			case f.Default != "":
			case options != "omitempty":
				f.Default = "required"
			case sf.Type == inner && inner.Kind() != reflect.Struct && (!value.IsZero() || inner.Kind() == reflect.Bool):
				f.Default = fmt.Sprint(value)
			default:
				f.Default = "none"
			}
			fields = append(fields, f)
			if inner.Kind() == reflect.Struct {
				walk(at+".", inner, value)
			}
		}
	}
	walk("", reflect.TypeFor[Fleet](), reflect.ValueOf(defaults))
	return fields
})

// indexes matches the list indexes of a path.
var indexes = regexp.MustCompile(`\[[0-9*]*\]`)

// Explain returns the field at a path and the fields below it. List indexes may be left out.
func Explain(path string) ([]Field, error) {
	want := indexes.ReplaceAllString(path, "")
	var found []Field
	for _, f := range Fields() {
		if have := strings.ReplaceAll(f.Path, "[]", ""); have == want || strings.HasPrefix(have, want+".") {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the fleet file has no field %s; %s", path, suggest(want[strings.LastIndexByte(want, '.')+1:], !strings.Contains(want, ".")))
	}
	return found, nil
}

// typeName returns the name of a type in the terms of YAML.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct:
		return "object"
	case reflect.Bool:
		return "bool"
	case reflect.Float64:
		return "number"
	case reflect.String:
		return "string"
	}
	if t == reflect.TypeFor[time.Duration]() {
		return "duration"
	}
	return "integer"
}

// meaning turns the comment of a struct field into one paragraph about the YAML
// field.
func meaning(comment, goName, yamlName string) string {
	text := strings.Join(strings.Fields(comment), " ")
	if rest, ok := strings.CutPrefix(text, goName+" "); ok {
		return yamlName + " " + rest
	}
	return text
}

// parseComments returns the comments of all struct fields, by Type.Field.
func parseComments() map[string]string {
	comments := make(map[string]string)
	entries, err := source.ReadDir(".")
	if err != nil {
		panic("internal error: embedded source: " + err.Error())
	}
	for _, e := range entries {
		text, err := source.ReadFile(e.Name())
		if err != nil {
			panic("internal error: embedded source: " + err.Error())
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			panic("internal error: embedded source: " + err.Error())
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						comments[spec.Name.Name+"."+name.Name] = f.Doc.Text()
					}
				}
			}
			return false
		})
	}
	return comments
}

package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// yamlPaths returns the paths of all fields of a struct type.
func yamlPaths(prefix string, t reflect.Type) (paths []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name == "-" {
			continue
		}
		path, inner := prefix+name, t.Field(i).Type
		paths = append(paths, path)
		switch inner.Kind() {
		case reflect.Slice:
			path, inner = path+"[]", inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			paths = append(paths, yamlPaths(path+".", inner)...)
		}
	}
	return paths
}

// TestFieldsAreComplete: every field of the structs is explained, with a type, a
// default and a meaning, and the example shows it.
func TestFieldsAreComplete(t *testing.T) {
	byPath := make(map[string]Field)
	for _, f := range Fields() {
		byPath[f.Path] = f
	}
	paths := yamlPaths("", reflect.TypeFor[Fleet]())
	if len(paths) != len(Fields()) {
		t.Errorf("%d fields are explained, the structs have %d", len(Fields()), len(paths))
	}
	for _, path := range paths {
		f := byPath[path]
		if f.Type == "" || f.Default == "" || !strings.HasSuffix(f.Meaning, ".") {
			t.Errorf("%s: incomplete: %+v", path, f)
		}
		name := path[strings.LastIndexByte(path, '.')+1:]
		if name = strings.TrimSuffix(name, "[]"); !regexp.MustCompile(`\b` + name + `:`).MatchString(Example) {
			t.Errorf("the example does not show %s", path)
		}
	}
}

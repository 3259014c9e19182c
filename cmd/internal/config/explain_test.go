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
		path, inner := prefix+name, t.Field(i).Type
		paths = append(paths, path)
		switch inner.Kind() {
		case reflect.Slice:
			path, inner = path+"[]", inner.Elem()
		case reflect.Map:
			path, inner = path+".<kind>", inner.Elem()
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
		if name = strings.TrimSuffix(name, "[]"); name != "<kind>" && !regexp.MustCompile(`\b`+name+`:`).MatchString(Example) {
			t.Errorf("the example does not show %s", path)
		}
		if _, removed := removedFields[path]; removed {
			t.Errorf("%s is a field and is listed as removed", path)
		}
	}
}

// TestRemovedFields: a file that has them all gets an error for each of them.
func TestRemovedFields(t *testing.T) {
	for path := range removedFields {
		section, name, _ := strings.Cut(path, ".")
		text := section + ":\n  " + name + ": 1\n"
		if parent, field, nested := strings.Cut(name, "."); nested {
			text = section + ":\n  " + parent + ":\n    " + field + ": 1\n"
		}
		_, err := Read(strings.NewReader("speed: 1\n" + text))
		if err == nil || !strings.Contains(err.Error(), path+": this field was removed") || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

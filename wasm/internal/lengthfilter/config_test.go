package lengthfilter

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestReadConfig(t *testing.T) {
	for text, want := range map[string]Config{
		"":                                       {},
		" ":                                      {},
		"{}":                                     {},
		`{"read_body":true,"max_body":16777216}`: {ReadBody: true, MaxBody: 16 << 20},
		"\n{ \"models\" : [ {\"model\":\"org\\/m\", \"bytes_per_token\": 3.9e0, \"adapters\": [\"a\", \"\\u00e4\\ud83d\\ude00\"]}, {} ] }\n": {
			Models: []Model{{Name: "org/m", BytesPerToken: 3.9, Adapters: []string{"a", "ä😀"}}, {}},
		},
	} {
		if got, err := ReadConfig([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`{"read_body":1}`:                     "read_body: want true or false",
		`{"max_body":"1"}`:                    "max_body: want a number",
		`{"max_body":1.5}`:                    "max_body",
		`{"max_body":01}`:                     "want",
		`{"max":1}`:                           `unknown field "max"`,
		`{"max_body":1,"max_body":2}`:         "repeated key",
		`{"models":[{"name":"m"}]}`:           `models: unknown field "name"`,
		`{"models":[{"model":"m"`:             "want }",
		`{"models":[{"model":"m` + "\n" + `"`: "the string's end",
		`{"models":[{"model":"\x"}]}`:         "an escape",
		`{} x`:                                "the end",
		`[]`:                                  "want {",
	} {
		_, err := ReadConfig([]byte(text))
		testkit.WantError(t, err, want)
	}
}

// FuzzReadConfig checks that encoding/json reads every accepted configuration the same.
func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(`{"read_body":true,"max_body":16777216,"models":[{"model":"a\u00e4\/","bytes_per_token":-1.5e+1,"adapters":["x",""]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ReadConfig(text)
		if err != nil || len(bytes.TrimSpace(text)) == 0 {
			return
		}
		var want Config
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%q is taken: %v", text, err)
		}
		// An empty list is nil here.
		if len(want.Models) == 0 {
			want.Models = nil
		}
		for i := range want.Models {
			if len(want.Models[i].Adapters) == 0 {
				want.Models[i].Adapters = nil
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	})
}

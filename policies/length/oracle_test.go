package length

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// oracle counts a body that encoding/json accepts by building all of its values: slow
// and recursive, but obviously correct.
func oracle(data []byte) (Count, string) {
	c := Count{Bytes: int64(len(data))}
	var root map[string]json.RawMessage
	if json.Unmarshal(data, &root) != nil {
		c.Malformed = !json.Valid(data)
		return c, ""
	}
	var model string
	if m := root["model"]; kind(m) == '"' {
		json.Unmarshal(m, &model)
	}
	if len(model) > MaxModel {
		model = ""
	}
	c.MaxTokens = oracleLimit(root["max_completion_tokens"])
	if c.MaxTokens == 0 {
		c.MaxTokens = oracleLimit(root["max_tokens"])
	}
	for _, k := range []string{"prompt", "messages", "input"} {
		z := oraclePrompt(root[k])
		c.Text, c.Tokens, c.Media, c.Found = c.Text+z.text, c.Tokens+policies.Tokens(z.tokens), c.Media+z.media, c.Found || z.found
		if z.prompts > 1 && k != "messages" {
			c.Prompts += z.prompts
			c.OtherText, c.OtherTokens = c.OtherText+max(z.allText-z.text, 0), c.OtherTokens+policies.Tokens(max(z.allIDs-z.tokens, 0))
		}
	}
	if n := oracleEntries(root["documents"]).prompts + oracleEntries(root["text_2"]).prompts; !c.Found && n > 1 {
		c.Prompts = n
		for _, k := range []string{"query", "queries", "text_1"} {
			if z := oracleEntries(root[k]); z.prompts <= 1 {
				c.OtherText += int64(n-1) * z.text
			}
		}
	}
	for _, k := range []string{"system", "instructions"} {
		z := oracleContent(root[k])
		c.Text, c.Media = c.Text+z.text, c.Media+z.media
	}
	c.Text += oracleRaw(root["tools"]) + oracleRaw(root["functions"])
	return c, model
}

func oracleLimit(m json.RawMessage) policies.Tokens {
	if kind(m) != '0' || strings.ContainsAny(string(m), ".eE-") {
		return 0
	}
	n, err := strconv.ParseInt(string(m), 10, 64)
	if err != nil {
		return policies.Unbounded
	}
	return policies.Tokens(n)
}

func oraclePrompt(m json.RawMessage) (z size) {
	switch kind(m) {
	case '"':
		z.text, z.found = stringLength(m), true
	case '[':
		z.found = true
		for _, e := range array(m) {
			switch kind(e) {
			case '"':
				z.text, z.allText, z.prompts = max(z.text, stringLength(e)), z.allText+stringLength(e), z.prompts+1
			case '0':
				z.tokens++
			case '[':
				row := int64(0)
				for _, x := range array(e) {
					if kind(x) == '0' {
						row++
					}
				}
				z.tokens, z.allIDs, z.prompts = max(z.tokens, row), z.allIDs+row, z.prompts+1
			case '{':
				msg := object(e)
				z.add(oracleContent(msg["content"]))
				z.text += oracleRaw(msg["tool_calls"]) + oracleRaw(msg["function_call"])
			}
		}
	}
	return z
}

func oracleEntries(m json.RawMessage) (z size) {
	if kind(m) == '"' {
		z.text = stringLength(m)
	}
	if kind(m) != '[' {
		return z
	}
	for _, e := range array(m) {
		switch kind(e) {
		case '"', '[', '{':
			z.prompts++
			z.text += stringLength(e)
		}
	}
	return z
}

func oracleContent(m json.RawMessage) (z size) {
	switch kind(m) {
	case '"':
		z.text = stringLength(m)
	case '[':
		for _, e := range array(m) {
			switch kind(e) {
			case '"':
				z.text += stringLength(e)
			case '{':
				t, ok := object(e)["text"]
				if !ok {
					z.media++
				}
				if kind(t) == '"' {
					z.text += stringLength(t)
				}
			}
		}
	}
	return z
}

func oracleRaw(m json.RawMessage) int64 {
	if k := kind(m); k != '[' && k != '{' {
		return 0
	}
	var b bytes.Buffer
	json.Compact(&b, m)
	return int64(b.Len())
}

// kind returns a value's first byte, with '0' for every number.
func kind(m json.RawMessage) byte {
	m = bytes.TrimSpace(m)
	switch {
	case len(m) == 0:
		return 0
	case m[0] == '-' || '0' <= m[0] && m[0] <= '9':
		return '0'
	}
	return m[0]
}

func stringLength(m json.RawMessage) int64 {
	var s string
	json.Unmarshal(m, &s)
	return int64(len(s))
}

func array(m json.RawMessage) (v []json.RawMessage) {
	json.Unmarshal(m, &v)
	return v
}

func object(m json.RawMessage) (v map[string]json.RawMessage) {
	json.Unmarshal(m, &v)
	return v
}

// depth returns how deeply a valid body is nested.
func depth(data []byte) (deepest int) {
	d := json.NewDecoder(bytes.NewReader(data))
	for now := 0; ; {
		t, err := d.Token()
		if err != nil {
			return deepest
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			now++
			deepest = max(deepest, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
	}
}

package emulator

import (
	"github.com/tidwall/gjson"
)

// tools are the functions that a chat may call.
type tools struct {
	raw    string // as the client wrote them; part of the prompt
	list   []gjson.Result
	choice string // auto, none, required, or the function that must be called, after "="
}

// decodeTools decodes tools.
func (t *tools) decodeTools(v gjson.Result) *apiError {
	if !v.IsArray() {
		return invalid("tools", "tools must be a list")
	}
	t.list = nil
	for _, tool := range v.Array() {
		if tool.Get("type").Str != "function" || tool.Get("function.name").Str == "" {
			return invalid("tools", "tools.%d: must have the type function, and a function with a name", len(t.list))
		}
		t.list = append(t.list, tool.Get("function"))
	}
	if len(t.list) > 0 {
		t.raw = v.Raw
	}
	return nil
}

// decodeChoice decodes tool_choice.
func (t *tools) decodeChoice(v gjson.Result) *apiError {
	switch name := v.Get("function.name").Str; {
	case v.Str == "auto" || v.Str == "none" || v.Str == "required":
		t.choice = v.Str
	case v.IsObject() && name != "":
		t.choice = "=" + name
	default:
		return invalid("tool_choice", "tool_choice must be auto, none, required, or an object that names a function")
	}
	return nil
}

// called returns the function that the answer calls, and whether there is one. As a model would, an engine that may
// choose answers a tool's result with text; it calls the first function otherwise, so that a loop of calls ends.
func (t *tools) called(last message) (gjson.Result, bool, *apiError) {
	automatic := t.choice == "" || t.choice == "auto"
	switch {
	case t.choice == "required" && len(t.list) == 0:
		return gjson.Result{}, false, invalid("tool_choice", "tool_choice required needs tools")
	case t.choice == "none" || automatic && (len(t.list) == 0 || last.role == "tool"):
		return gjson.Result{}, false, nil
	case automatic || t.choice == "required":
		return t.list[0], true, nil
	}
	for _, f := range t.list {
		if "="+f.Get("name").Str == t.choice {
			return f, true, nil
		}
	}
	return gjson.Result{}, false, invalid("tool_choice", "tool_choice names the function %.64q, which is not in tools", t.choice[1:])
}

package openai

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func readForm(t testing.TB, contentType string, form []byte) map[string]string {
	t.Helper()
	_, params, err := mime.ParseMediaType(contentType)
	testkit.NoError(t, err)
	fields := make(map[string]string)
	for r := multipart.NewReader(bytes.NewReader(form), params["boundary"]); ; {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return fields
		}
		testkit.NoError(t, err)
		value, err := io.ReadAll(part)
		testkit.NoError(t, err)
		fields[part.FormName()+"|"+part.FileName()+"|"+part.Header.Get("Content-Type")] = string(value)
	}
}

func TestPlainForm(t *testing.T) {
	part := func(disposition, value string) string {
		return "--b\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + value + "\r\n"
	}
	const kind, end = "multipart/form-data; boundary=b", "--b--\r\n"
	body := "--b\r\nContent-Disposition: form-data; name=file; filename=\"a\\\"b.wav\"\r\nContent-Type: audio/wav\r\nX-Other: 1\r\n\r\n\x00\r\n--\r\n" +
		part(`name="model"`, "m") + part(`name="timestamp_granularities[]"`, "word") +
		part(`name=kv_transfer_params`, "evil") + part(`name="vllm_xargs"`, "evil") + part(`name="ec_transfer_params"`, "evil") + end
	newType, form, err := extended.PlainForm(kind, []byte(body))
	testkit.NoError(t, err)
	got := readForm(t, newType, form)
	if len(got) != 3 || got["file|a_b.wav|audio/wav"] != "\x00\r\n--" || got["model||"] != "m" || got["timestamp_granularities[]||"] != "word" || bytes.Contains(form, []byte("X-Other")) {
		t.Errorf("%q: %q", got, form)
	}
	for contentType, body := range map[string]string{
		"application/json": "{}", "multipart/form-data": end, "multipart/mixed; boundary=b": end, "": "",
		kind:        part(`name="model"`, "cut"),
		kind + " ":  part(`name="kv_transfer_params "`, "x") + end,
		kind + "  ": strings.Repeat(part(`name="a"`, ""), maxFormFields+1) + end,
		kind + ";":  part(`filename="no name"`, "x") + end,
	} {
		if _, form, err := extended.PlainForm(contentType, []byte(body)); err == nil {
			t.Errorf("%s: %.100q is accepted as %.100q", contentType, body, form)
		}
	}
}

// FuzzPlainForm checks that what an engine gets is a form without withheld fields that is
// written as this package writes forms.
func FuzzPlainForm(f *testing.F) {
	f.Add("b", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\nContent-Type: a/b\r\n\r\nx\r\n--b--\r\n")
	f.Add("b", "--b\nContent-Disposition: form-data; name*=utf-8''kv_transfer_params\n\nx\n--b--\n")
	f.Fuzz(func(t *testing.T, boundary, body string) {
		kind, form, err := extended.PlainForm(mime.FormatMediaType("multipart/form-data", map[string]string{"boundary": boundary}), []byte(body))
		if err != nil {
			return
		}
		fields := readForm(t, kind, form)
		for name := range fields {
			if name, _, _ = strings.Cut(name, "|"); extended.withholds(name) || !isFieldName(name) {
				t.Fatalf("the engine gets %q", name)
			}
		}
		kind, again, err := extended.PlainForm(kind, form)
		testkit.NoError(t, err)
		if got := readForm(t, kind, again); len(got) != len(fields) {
			t.Fatalf("%q, again %q", fields, got)
		}
	})
}

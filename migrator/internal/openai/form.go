package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
)

// maxFormFields bounds the fields of a form.
const maxFormFields = 64

// PlainForm returns a form (multipart/form-data) for an engine, without withheld fields,
// and its Content-Type. The form is written anew, because engines may read names out of a
// malformed one that are not seen here. The error says what is wrong with it, in words for
// the client.
func (f *Fields) PlainForm(contentType string, body []byte) (newType string, form []byte, err error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return "", nil, errors.New("not a form: Content-Type must be multipart/form-data with a boundary")
	}
	out := new(bytes.Buffer)
	out.Grow(len(body) + 1<<10)
	w := multipart.NewWriter(out)
	r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for n := 0; ; n++ {
		part, err := r.NextRawPart()
		switch {
		case err == io.EOF:
			if err := w.Close(); err != nil {
				return "", nil, err
			}
			return w.FormDataContentType(), out.Bytes(), nil
		case err != nil:
			return "", nil, fmt.Errorf("not a valid form: %w", err)
		case n == maxFormFields:
			return "", nil, fmt.Errorf("a form with more than %d fields", maxFormFields)
		}
		name := part.FormName()
		if !isFieldName(name) {
			return "", nil, fmt.Errorf("a form with a field named %.40q: names consist of letters, digits and _-.[]", name)
		}
		if f.withholds(name) || name == f.Nested {
			continue
		}
		disposition := `form-data; name="` + name + `"`
		if file := part.FileName(); file != "" {
			disposition += `; filename="` + strings.Map(fileNameRune, file) + `"`
		}
		header := textproto.MIMEHeader{"Content-Disposition": {disposition}}
		if kind := part.Header.Get("Content-Type"); kind != "" {
			header.Set("Content-Type", kind)
		}
		field, err := w.CreatePart(header)
		if err == nil {
			_, err = io.Copy(field, part)
		}
		if err != nil {
			return "", nil, fmt.Errorf("not a valid form: %w", err)
		}
	}
}

// fileNameRune replaces what parsers read differently in a quoted file name.
func fileNameRune(r rune) rune {
	if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '%' {
		return '_'
	}
	return r
}

func isFieldName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]") == ""
}

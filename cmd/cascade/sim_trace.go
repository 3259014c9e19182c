package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
)

// stream returns the requests that the flags describe, one by one: neither a trace nor a mix is read
// into memory. With skip, invalid lines are counted and dropped. The caller closes the source.
func (r *traceFlags) stream(skip bool, skipped *invalidLines) (source trace.Source, closeSource func(), err error) {
	shape := trace.Shape{Rate: r.rate, Spread: r.spread, From: r.from, Until: r.until, MaxLength: policies.Tokens(r.maxLength), Limit: r.requests, Seed: r.seed}
	var files []*os.File
	closeSource = func() {
		for _, f := range files {
			f.Close()
		}
	}
	open := func() (trace.Source, error) {
		if r.file == "" {
			return r.drawMix()
		}
		f, err := os.Open(r.file)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		return trace.NewReader(f, r.file)
	}
	source, err = shape.Stream(open)
	if err != nil {
		closeSource()
		return nil, nil, err
	}
	if skip {
		source = trace.SkipInvalid(source, skipped.add)
	}
	return &notEmpty{source, r.file, skipped}, closeSource, nil
}

// drawMix starts to draw the mix.
func (r *traceFlags) drawMix() (trace.Source, error) {
	g, err := generator(r.mix)
	if err != nil {
		return nil, err
	}
	g.Requests, g.Duration, g.Seed = r.requests, r.duration, r.seed
	return g.Open()
}

// notEmpty is a source whose end before the first request is an error.
type notEmpty struct {
	trace.Source
	name    string // "" after the first request
	skipped *invalidLines
}

// Next implements trace.Source.
func (n *notEmpty) Next() (trace.Request, error) {
	q, err := n.Source.Next()
	if err == nil {
		n.name = ""
	}
	if errors.Is(err, io.EOF) && n.name != "" && n.skipped != nil && n.skipped.first != nil {
		return q, fmt.Errorf("%w; no line is valid", n.skipped.first)
	}
	if errors.Is(err, io.EOF) && n.name != "" {
		return q, errors.New(n.name + ": " + trace.ErrEmpty.Error())
	}
	return q, err
}

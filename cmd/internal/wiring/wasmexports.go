package wiring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Exports of a proxy-wasm filter: the ABI version that it was written for, and the
// function that a length estimator needs.
const (
	proxyVersion = "proxy_abi_version_"
	proxyHeaders = "proxy_on_request_headers"
)

// checkEstimatorModule checks that a module can be a length estimator inside Envoy,
// by its exports. Whether it runs, only Envoy finds out.
func checkEstimatorModule(code []byte) error {
	names, err := exportedNames(code)
	if err != nil {
		return fmt.Errorf("not a WebAssembly module: %w; \"make estimator\" builds the length estimator", err)
	}
	filter := slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, proxyVersion) })
	switch {
	case slices.Contains(names, abi.ExportArena):
		return errors.New("the module is a policy (" + abi.Name + "), which \"cascade policy push\" installs; control.estimator takes a proxy-wasm filter: \"make estimator\" builds it")
	case !filter:
		return errors.New("the module is not a proxy-wasm filter: it does not export " + proxyVersion + "…; \"make estimator\" builds the length estimator")
	case !slices.Contains(names, proxyHeaders):
		return errors.New("the proxy-wasm filter does not read headers: it does not export " + proxyHeaders + "; \"make estimator\" builds the length estimator")
	}
	return nil
}

// sectionExports is the id of a module's export section.
const sectionExports = 7

var errTruncated = errors.New("truncated")

// exportedNames returns the names that a module exports. It reads only the export
// section.
func exportedNames(code []byte) (names []string, err error) {
	const head = 8 // the magic and the version
	if len(code) < head {
		return nil, errTruncated
	}
	for rest := code[head:]; len(rest) > 0; {
		id := rest[0]
		body, after, ok := cutVector(rest[1:])
		if !ok {
			return nil, errTruncated
		}
		rest = after
		if id != sectionExports {
			continue
		}
		n, size := binary.Uvarint(body)
		if size <= 0 {
			return nil, errTruncated
		}
		body = body[size:]
		for range n {
			name, after, ok := cutVector(body)
			if !ok || len(after) == 0 {
				return nil, errTruncated
			}
			_, size := binary.Uvarint(after[1:]) // the index follows the kind
			if size <= 0 {
				return nil, errTruncated
			}
			names, body = append(names, string(name)), after[1+size:]
		}
	}
	return names, nil
}

// cutVector splits b after a vector of bytes that begins with its length.
func cutVector(b []byte) (bytes, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

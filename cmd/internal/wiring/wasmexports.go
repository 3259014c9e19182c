package wiring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// What a filter of proxy-wasm exports: the version that it was written for, and the
// call that an estimator is for.
const (
	proxyVersion = "proxy_abi_version_"
	proxyHeaders = "proxy_on_request_headers"
)

// checkEstimatorModule says why a module is no filter that could estimate lengths inside Envoy. That
// it runs, Envoy finds out.
func checkEstimatorModule(code []byte) error {
	names, err := exportedNames(code)
	if err != nil {
		return fmt.Errorf("not a WebAssembly module: %w; \"make estimator\" builds the length estimator", err)
	}
	filter := slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, proxyVersion) })
	switch {
	case slices.Contains(names, abi.ExportArena):
		return errors.New("this is a policy (" + abi.Name + "), which comes to a fleet by \"cascade policy push\"; here goes the length estimator, a filter of proxy-wasm: \"make estimator\" builds ours")
	case !filter:
		return errors.New("this is no filter of proxy-wasm: it exports no " + proxyVersion + "…; \"make estimator\" builds the length estimator")
	case !slices.Contains(names, proxyHeaders):
		return errors.New("this filter of proxy-wasm looks at no headers: it exports no " + proxyHeaders + "; \"make estimator\" builds the length estimator")
	}
	return nil
}

// sectionExports is the number of the section that names what a module exports.
const sectionExports = 7

var errTruncated = errors.New("it is cut off")

// exportedNames lists the names that a module exports, and reads nothing else of it.
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
			_, size := binary.Uvarint(after[1:]) // behind its kind, its index
			if size <= 0 {
				return nil, errTruncated
			}
			names, body = append(names, string(name)), after[1+size:]
		}
	}
	return names, nil
}

// cutVector cuts off bytes that begin with their number.
func cutVector(b []byte) (bytes, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

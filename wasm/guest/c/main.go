// Command c writes cascade_policy.h, the frames of cascade-policy/1 for C, from
// the golden vectors of package abi: they list every field with its offset and
// type, and are what package abi is held to.
//
//	go generate ./wasm/guest/c
package main

//go:generate go run .

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

const name = "cascade_policy.h"

func main() {
	log.SetFlags(0)
	text, err := header(filepath.Join("..", "..", "abi", "testdata"))
	if err == nil {
		err = os.WriteFile(name, text, 0o666)
	}
	if err != nil {
		log.Fatal("c: ", err)
	}
}

// A vector is what NAME.json has of a frame and an answer.
type vector struct {
	Frame, Output []field
}

type field struct {
	At   int
	Type string
	Name string // as "args.kv" or "records[0].edge"
}

// structs says which struct the fields that begin with a prefix make, and of
// which kinds' vectors.
var structs = []struct {
	kind         abi.Kind
	prefix, name string
	output       bool
}{
	{abi.Configure, "", "header", false},
	{abi.Partition, "args.", "partition_args", false},
	{abi.Partition, "records[0].", "partition_bucket", false},
	{abi.Partition, "output.", "partition_output", true},
	{abi.Partition, "stages[0].", "partition_stage", true},
	{abi.Refine, "args.", "refine_args", false},
	{abi.Refine, "records[0].", "refine_sequence", false},
	{abi.Refine, "output.", "refine_output", true},
	{abi.Quote, "args.", "bid_quote_args", false},
	{abi.Quote, "output.", "bid_quote_output", true},
	{abi.Select, "records[0].", "bid_select_bid", false},
	{abi.Outlier, "args.", "outlier_args", false},
	{abi.Outlier, "output.", "outlier_output", true},
	{abi.Place, "args.", "place_args", false},
	{abi.Place, "records[0].", "place_site", false},
	{abi.Guard, "args.", "guard_args", false},
	{abi.Guard, "records[0].", "guard_stage", false},
	{abi.Guard, "output.", "guard_output", true},
}

// types are C's for the vectors', with their sizes.
var types = map[string]struct {
	name string
	size int
}{
	"u16": {"uint16_t", 2}, "u32": {"uint32_t", 4}, "i32": {"int32_t", 4}, "u64": {"uint64_t", 8}, "i64": {"int64_t", 8},
	"f64": {"double", 8}, "text": {"cs_text", 8},
}

// header makes the file of the vectors in dir.
func header(dir string) ([]byte, error) {
	var w bytes.Buffer
	fmt.Fprintf(&w, top, abi.Name, abi.Magic, abi.HeaderSize, abi.MaxState, abi.MaxDetail)
	fmt.Fprint(&w, "enum {\n")
	for k := range abi.NumKinds {
		fmt.Fprintf(&w, "  CS_KIND_%s = %d,\n", upper(k.String()), k)
	}
	fmt.Fprint(&w, "};\n\n/* What a call returns: see cs_result. */\nenum {\n")
	for s, n := range []string{"OK", "NONE", "UNSUPPORTED", "BAD_FRAME", "SHORT", "FAILED"} {
		fmt.Fprintf(&w, "  CS_%s = %d, /* %s */\n", n, s, abi.Status(s).Error())
	}
	fmt.Fprint(&w, "};\n")
	for _, s := range structs {
		// guard's denial has an output of its own
		file := s.kind.String()
		if s.kind == abi.Guard && s.output {
			file = "guard-denied"
		}
		text, err := os.ReadFile(filepath.Join(dir, file+".json"))
		if err != nil {
			return nil, err
		}
		var v vector
		if err := json.Unmarshal(text, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list := v.Frame
		if s.output {
			list = v.Output
		}
		if err := declare(&w, s.name, s.prefix, list); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	fmt.Fprintf(&w, bottom, abi.ImportModule, abi.ImportLog, abi.ImportFail, abi.ExportArena)
	for k := range abi.NumKinds {
		fmt.Fprintf(&w, "#define CS_%s CS_EXPORT(%q)\n", upper(k.String()), k.Export())
	}
	fmt.Fprint(&w, "\n#endif\n")
	return w.Bytes(), nil
}

// declare writes the struct of the fields with a prefix, in their order. They
// leave no hole, so that the size alone says that a compiler agrees.
func declare(w *bytes.Buffer, name, prefix string, list []field) error {
	var body strings.Builder
	first, size := -1, 0
	for _, f := range list {
		member, ok := strings.CutPrefix(f.Name, prefix)
		c, known := types[f.Type]
		// Of the empty prefix is the header alone, which has no dots.
		if !ok || !known || strings.ContainsAny(member, ".[") {
			continue
		}
		if first < 0 {
			first = f.At
		}
		if f.At-first != size {
			return fmt.Errorf("%s.%s is at %d, the field before ends at %d", name, member, f.At-first, size)
		}
		fmt.Fprintf(&body, "  %s %s; /* %d */\n", c.name, member, size)
		size += c.size
	}
	if size == 0 || size%8 != 0 {
		return fmt.Errorf("%s has %d bytes", name, size)
	}
	fmt.Fprintf(w, "\ntypedef struct {\n%s} cs_%s;\nCS_CHECK(sizeof(cs_%s) == %d, \"%s has holes\");\n", body.String(), name, name, size, name)
	return nil
}

func upper(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

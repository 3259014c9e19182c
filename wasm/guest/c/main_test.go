package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

const vectors = "../../abi/testdata"

func TestHeaderIsUpToDate(t *testing.T) {
	want, err := header(vectors)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what the vectors say: go generate ./wasm/guest/c", name)
	}
}

// compile builds a C file with the header, with warnings as errors.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	cc := testkit.Tool(t, "cc")
	out := filepath.Join(t.TempDir(), "program")
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-I.", "-o", out, source}, flags...)
	if msg, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, msg)
	}
	return out
}

// TestHeaderOpensVectors opens every vector in a C program, also with each byte changed and
// each length truncated. The program accesses everything that cs_open accepted, under
// sanitizers.
func TestHeaderOpensVectors(t *testing.T) {
	program := compile(t, filepath.Join("testdata", "open.c"), "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	sizes := map[string][2]int{ // the sizes of arguments and records in package abi
		"configure": {0, 0}, "partition": {184, 96}, "refine": {96, 16}, "bid-quote": {64, 0}, "bid-select": {0, 24},
		"outlier": {16, 0}, "place": {64, 64}, "guard": {40, 24},
	}
	for k := range abi.NumKinds {
		size, ok := sizes[k.String()]
		if !ok {
			t.Errorf("no sizes of kind %v", k)
		}
		frame, err := os.Open(filepath.Join(vectors, k.String()+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, fmt.Sprint(int(k)), fmt.Sprint(size[0]), fmt.Sprint(size[1]))
		cmd.Stdin = frame
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", k, err, msg)
		}
		frame.Close()
	}
}

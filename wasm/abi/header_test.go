package abi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestHeader checks that the header for C has what the vectors say; "make generate" writes it.
func TestHeader(t *testing.T) {
	testkit.CompareGolden(t, filepath.Join("..", "guest", "c", "cascade_policy.h"), testkit.Must(cHeader()))
}

// compileC builds a C file with the header, with warnings as errors.
func compileC(t *testing.T, source string, flags ...string) string {
	t.Helper()
	cc := testkit.Tool(t, "cc")
	out := filepath.Join(t.TempDir(), "program")
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-I../guest/c", "-o", out, source}, flags...)
	if msg, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, msg)
	}
	return out
}

// TestHeaderOpensVectors opens every vector in a C program, also with each byte changed and
// each length truncated. The program accesses everything that cs_open accepted, under
// sanitizers.
func TestHeaderOpensVectors(t *testing.T) {
	program := compileC(t, filepath.Join("testdata", "open.c"), "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	sizes := map[string][2]int{ // the sizes of arguments and records in package abi
		"configure": {0, 0}, "partition": {184, 96}, "refine": {96, 16}, "bid-quote": {64, 0}, "bid-select": {0, 24},
		"outlier": {16, 0}, "place": {64, 72}, "guard": {40, 24},
	}
	for k := range NumKinds {
		size, ok := sizes[k.String()]
		if !ok {
			t.Errorf("no sizes of kind %v", k)
		}
		frame := testkit.Must(os.Open(filepath.Join("testdata", k.String()+".hex")))
		cmd := exec.Command(program, fmt.Sprint(int(k)), fmt.Sprint(size[0]), fmt.Sprint(size[1]))
		cmd.Stdin = frame
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", k, err, msg)
		}
		frame.Close()
	}
}

// cVector is what NAME.json has of a frame and an answer.
type cVector struct {
	Frame, Output []cField
}

type cField struct {
	At   int
	Type string
	Name string // as "args.kv" or "records[0].edge"
}

// cStructs says which struct the fields that begin with a prefix make, and of
// which kinds' vectors.
var cStructs = []struct {
	kind         Kind
	prefix, name string
	output       bool
}{
	{Configure, "", "header", false},
	{Partition, "args.", "partition_args", false},
	{Partition, "records[0].", "partition_bucket", false},
	{Partition, "output.", "partition_output", true},
	{Partition, "stages[0].", "partition_stage", true},
	{Refine, "args.", "refine_args", false},
	{Refine, "records[0].", "refine_sequence", false},
	{Refine, "output.", "refine_output", true},
	{Quote, "args.", "bid_quote_args", false},
	{Quote, "output.", "bid_quote_output", true},
	{Select, "records[0].", "bid_select_bid", false},
	{Outlier, "args.", "outlier_args", false},
	{Outlier, "output.", "outlier_output", true},
	{Place, "args.", "place_args", false},
	{Place, "records[0].", "place_site", false},
	{Guard, "args.", "guard_args", false},
	{Guard, "records[0].", "guard_stage", false},
	{Guard, "output.", "guard_output", true},
}

// cTypes are C's for the vectors', with their sizes.
var cTypes = map[string]struct {
	name string
	size int
}{
	"u16": {"uint16_t", 2}, "u32": {"uint32_t", 4}, "i32": {"int32_t", 4}, "u64": {"uint64_t", 8}, "i64": {"int64_t", 8},
	"f64": {"double", 8}, "text": {"cs_text", 8},
}

// cHeader makes cascade_policy.h of the golden vectors: they list every field with its offset
// and type, and are what the package is held to.
func cHeader() ([]byte, error) {
	var w bytes.Buffer
	fmt.Fprintf(&w, cTop, Name, Magic, HeaderSize, MaxState, MaxDetail)
	fmt.Fprint(&w, "enum {\n")
	for k := range NumKinds {
		fmt.Fprintf(&w, "  CS_KIND_%s = %d,\n", upper(k.String()), k)
	}
	fmt.Fprint(&w, "};\n\n/* What a call returns: see cs_result. */\nenum {\n")
	for s, n := range []string{"OK", "NONE", "UNSUPPORTED", "BAD_FRAME", "SHORT", "FAILED"} {
		fmt.Fprintf(&w, "  CS_%s = %d, /* %s */\n", n, s, Status(s).Error())
	}
	fmt.Fprint(&w, "};\n")
	for _, s := range cStructs {
		// guard's denial has an output of its own
		file := s.kind.String()
		if s.kind == Guard && s.output {
			file = "guard-denied"
		}
		text, err := os.ReadFile(filepath.Join("testdata", file+".json"))
		if err != nil {
			return nil, err
		}
		var v cVector
		if err := json.Unmarshal(text, &v); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list := v.Frame
		if s.output {
			list = v.Output
		}
		if err := declareC(&w, s.name, s.prefix, list); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	fmt.Fprintf(&w, cBottom, ImportModule, ImportLog, ImportFail, ExportArena)
	for k := range NumKinds {
		fmt.Fprintf(&w, "#define CS_%s CS_EXPORT(%q)\n", upper(k.String()), k.Export())
	}
	fmt.Fprint(&w, "\n#endif\n")
	return w.Bytes(), nil
}

// declareC writes the struct of the fields with a prefix, in their order. They
// leave no hole, so that the size alone says that a compiler agrees.
func declareC(w *bytes.Buffer, name, prefix string, list []cField) error {
	var body strings.Builder
	first, size := -1, 0
	for _, f := range list {
		member, ok := strings.CutPrefix(f.Name, prefix)
		c, known := cTypes[f.Type]
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

// cTop is the header's beginning, for the protocol's name and its constants.
const cTop = `/* cascade_policy.h: policies in C for Cascade's sandbox, by %s.

   Generated (make generate): do not edit. The protocol is described
   in package wasm/abi; the structs below overlay its frames. They may grow at
   their ends: step through records with cs_record, never with an index.

     #include "cascade_policy.h"

     CS_ARENA(64 * 1024)

     CS_BID_SELECT int64_t select_bid(uint32_t len) {
       cs_header *h;
       int status = cs_open(len, CS_KIND_BID_SELECT, 0, sizeof(cs_bid_select_bid), &h);
       if (status != CS_OK) return cs_result(status, 0);
       if (h->rec_count == 0) return cs_result(CS_NONE, 0);
       ...
       return cs_result(CS_OK, winner);
     }

   A call is a pure function of its frame: the host runs any instance for any
   call. Build with -O2 -nostdlib -Wl,--no-entry for wasm32-freestanding; anything
   of WASI beyond what the protocol lists is refused. Needs C11. */

#ifndef CASCADE_POLICY_H
#define CASCADE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#define CS_CHECK(what, text) _Static_assert(what, text)

#define CS_MAGIC 0x%xu
#define CS_HEADER_SIZE %d
#define CS_MAX_STATE %d
#define CS_MAX_DETAIL %d
#define CS_UNBOUNDED INT64_MAX /* the open end of a range of lengths */

/* A text: where it begins in aux, and its bytes. Read it with cs_bytes. */
typedef struct {
  uint32_t off;
  uint32_t len;
} cs_text;

`

// cBottom is its end, for the names of the imports and the arena.
const cBottom = `
#if defined(__wasm__)
#define CS_EXPORT(name) __attribute__((export_name(name)))
#define CS_IMPORT(name) __attribute__((import_module("%[1]s"), import_name(name)))
/* A line for the host's log, which it may cut or drop: 0 debug to 3 error. */
CS_IMPORT("%[2]s") void cs_log(uint32_t level, const char *text, uint32_t len);
/* Says why the status will be CS_FAILED, whose number is the code. */
CS_IMPORT("%[3]s") void cs_fail(uint32_t code, const char *text, uint32_t len);
#else
/* Elsewhere the same file compiles to functions that tests can call. */
#define CS_EXPORT(name)
#endif

/* The region that frames come in; CS_ARENA defines it, once per module. */
extern unsigned char cs_arena[];
extern const uint32_t cs_arena_size;

#define CS_ARENA(bytes)                                                        \
  CS_CHECK((bytes) %% 8 == 0, "an arena has whole words");                      \
  _Alignas(8) unsigned char cs_arena[bytes];                                   \
  const uint32_t cs_arena_size = (bytes);                                      \
  CS_EXPORT("%[4]s") int64_t cs_arena_region(uint32_t least);              \
  int64_t cs_arena_region(uint32_t least) {                                    \
    if (least > cs_arena_size) return 0;                                       \
    return (int64_t)((uint64_t)(uintptr_t)cs_arena << 32 | cs_arena_size);     \
  }

static inline int64_t cs_result(int status, uint32_t value) {
  return (int64_t)((uint64_t)(uint32_t)status << 32 | value);
}

static inline int cs_in(uint64_t off, uint64_t n, uint32_t len) {
  return off %% 8 == 0 && off + n <= len;
}

/* Checks the frame of len bytes and sets *h to its header: of that kind, with
   arguments and records of at least these sizes, and all areas inside. For a kind
   without records the size is 0. Returns CS_OK, or the status to answer with:
   CS_UNSUPPORTED also if the host is older than this file and sends less. A policy
   that does without the newer fields, such as those of the QoE model, gives the
   offset of the first one as the size: offsetof(cs_partition_args, qoe_d0). */
static inline int cs_open(uint32_t len, int kind, uint32_t args, uint32_t record, cs_header **h) {
  cs_header *f = (cs_header *)(void *)cs_arena;
  if (len > cs_arena_size || len < CS_HEADER_SIZE || f->magic != CS_MAGIC || f->hdr_len < CS_HEADER_SIZE || f->hdr_len > len)
    return CS_BAD_FRAME;
  if (f->kind != kind || f->flags != 0) return CS_UNSUPPORTED;
  if (!cs_in(f->arg_off, f->arg_len, len) || !cs_in(f->aux_off, f->aux_len, len) ||
      !cs_in(f->state_off, f->state_cap, len) || f->state_len > f->state_cap || !cs_in(f->out_off, f->out_cap, len))
    return CS_BAD_FRAME;
  if (record > 0 && f->rec_count > 0 && (f->rec_stride %% 8 != 0 || !cs_in(f->rec_off, (uint64_t)f->rec_count * f->rec_stride, len)))
    return CS_BAD_FRAME;
  if (f->arg_len < args || (record > 0 && f->rec_count > 0 && f->rec_stride < record)) return CS_UNSUPPORTED;
  *h = f;
  return CS_OK;
}

/* The arguments, record i, the state and the room for the output of a frame that
   cs_open took for good. */
static inline void *cs_args(cs_header *h) { return cs_arena + h->arg_off; }
static inline void *cs_record(cs_header *h, uint32_t i) { return cs_arena + h->rec_off + (size_t)i * h->rec_stride; }
static inline void *cs_state(cs_header *h) { return cs_arena + h->state_off; }

/* The room for the output, or NULL if it has less than n bytes: then the result is
   cs_result(CS_SHORT, n). */
static inline void *cs_output(cs_header *h, uint32_t n) {
  return h->out_cap < n ? NULL : cs_arena + h->out_off;
}

/* The bytes of a text, or NULL if they are not in aux. They end without a 0. */
static inline const char *cs_bytes(cs_header *h, cs_text t) {
  return (uint64_t)t.off + t.len > h->aux_len ? NULL : (const char *)cs_arena + h->aux_off + t.off;
}

/* Before the functions of the kinds that a module decides. */
`

package session

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/policies"
)

var update = flag.Bool("update", false, "rewrite the expectations of the scenarios")

// TestScenarios plays every testdata/*.txt on one machine of the replica r0. A line
// is an event. A line that begins with ">" is an action that the preceding event must have
// caused, and "#" begins a comment. The lines:
//
//	config rescue hide-ids limit=20     before the first event
//	open a at=r0 CHUNK                  the first leg, or the leg of a rescue, is opened
//	open-failed why | found r1 | none   answers to open and seek
//	chunk a CHUNK | end a why           answers to read; eof and malformed have special meanings
//	resume                              the answer to resume and wait
//	client-failed
//	migrate from=r0 epoch=1 length=6    of=11,12,… are the ids whose hash it names
//	freeze 2 | migration-failed 2 why
//	migration-open 2 b at=r1 cached=3 CHUNK
//	request-ended why                   canceled has a special meaning
//	returned                            the handler has returned
//	state                               prints the state of the stream
//
// A CHUNK is prompt=11,12 ids=1,2 text=ab finish, or one of usage, done and
// error=500; no-ids leaves out the list of ids.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(text), "\n")
			for i := range max(len(gotLines), len(wantLines)) {
				g, w := "(end)", "(end)"
				if i < len(gotLines) {
					g = gotLines[i]
				}
				if i < len(wantLines) {
					w = wantLines[i]
				}
				if g != w {
					t.Fatalf("%s:%d: got\n%s\nwant\n%s", file, i+1, g, w)
				}
			}
		})
	}
}

// play runs a scenario and returns it together with the actions that it causes.
func play(t *testing.T, text string) string {
	cfg := Config{Self: "r0", Endpoint: openai.Completions, Resume: resume(t, 20)}
	var c *checker
	var out []string
	for n, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, ">") {
			continue
		}
		out = append(out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		l := parseLine(words)
		if l.verb == "config" {
			cfg.CanRescue, cfg.Asked.HideIDs = l.has("rescue"), l.has("hide-ids")
			if limit := l.number("limit"); limit > 0 {
				cfg.Resume = resume(t, limit)
			}
			continue
		}
		if c == nil {
			c = newChecker(New(cfg))
		}
		if l.verb == "state" {
			m := c.m
			out = append(out, fmt.Sprintf("> %v at %s, epoch %d, ids %v, aligned %v, held %d", m.State(), m.Holder(), m.Epoch(), m.ids, m.aligned, len(m.held)))
			continue
		}
		ev, err := l.event(t, c.m)
		if err != nil {
			t.Fatalf("line %d: %q: %v", n+1, line, err)
		}
		acts, err := c.step(ev)
		for _, a := range acts {
			out = append(out, "> "+printAction(t, a))
		}
		if err != nil {
			t.Fatalf("line %d: %q: %v", n+1, line, err)
		}
	}
	return strings.Join(out, "\n")
}

// line is a line of a scenario: a verb, plain words and fields.
type line struct {
	verb   string
	plain  []string
	fields map[string]string
}

func parseLine(words []string) line {
	l := line{verb: words[0], fields: make(map[string]string)}
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok {
			l.fields[name] = value
		} else {
			l.plain = append(l.plain, w)
		}
	}
	return l
}

func (l line) has(word string) bool {
	for _, w := range l.plain {
		if w == word {
			return true
		}
	}
	return false
}

func (l line) number(name string) int {
	n, _ := strconv.Atoi(l.fields[name])
	return n
}

func (l line) list(name string) (ids []uint32) {
	for s := range strings.SplitSeq(l.fields[name], ",") {
		if n, err := strconv.ParseUint(s, 10, 32); err == nil {
			ids = append(ids, uint32(n))
		}
	}
	return ids
}

// word returns the plain word at i, "" for none.
func (l line) word(i int) string {
	if i < len(l.plain) {
		return l.plain[i]
	}
	return ""
}

func (l line) err(i int) error {
	switch w := l.word(i); w {
	case "eof":
		return io.EOF
	case "canceled":
		return context.Canceled
	case "malformed":
		return &MalformedError{errors.New("no JSON")}
	default:
		return errors.New(w)
	}
}

func (l line) chunk(t *testing.T, leg string) *openai.Chunk {
	return chunk{leg: leg, prompt: l.list("prompt"), ids: l.list("ids"), noIDs: l.has("no-ids"), text: l.fields["text"], finish: l.has("finish"),
		usage: l.has("usage"), done: l.has("done"), failed: l.number("error")}.parse(t)
}

// event returns the event that a line describes.
func (l line) event(t *testing.T, m *Machine) (ev Event, err error) {
	n, _ := strconv.Atoi(l.word(0))
	number := policies.Epoch(n)
	switch l.verb {
	case "open":
		ev = Event{Kind: LegOpened, Leg: l.word(0), Chunk: l.chunk(t, l.word(0)), Replica: policies.ReplicaID(l.fields["at"])}
	case "open-failed":
		ev = Event{Kind: OpenFailed, Err: l.err(0)}
	case "found":
		ev = Event{Kind: ReplicaFound, Replica: policies.ReplicaID(l.word(0))}
	case "none":
		ev = Event{Kind: NoReplica}
	case "chunk":
		ev = Event{Kind: ChunkArrived, Leg: l.word(0), Chunk: l.chunk(t, l.word(0))}
	case "end":
		ev = Event{Kind: LegEnded, Leg: l.word(0), Err: l.err(1)}
	case "resume":
		ev = Event{Kind: Resumed}
	case "client-failed":
		ev = Event{Kind: ClientFailed}
	case "migrate":
		ev = Event{Kind: MigrationRequested, From: policies.ReplicaID(l.fields["from"]), Epoch: policies.Epoch(l.number("epoch")), Length: l.number("length")}
		ev.Hash = tokenhash.Hash(0).Add(l.list("of")...)
	case "freeze":
		ev = Event{Kind: FreezeRequested, Migration: number}
	case "migration-failed":
		ev = Event{Kind: MigrationFailed, Migration: number, Err: l.err(1)}
	case "migration-open":
		ev = Event{Kind: MigrationLegOpened, Migration: number, Leg: l.word(1), Chunk: l.chunk(t, l.word(1)), Replica: policies.ReplicaID(l.fields["at"]), Cached: l.number("cached")}
	case "request-ended":
		ev = Event{Kind: RequestEnded, Err: l.err(0)}
	case "returned":
		ev = Event{Kind: HandlerReturned}
	default:
		err = errors.New("no such event")
	}
	return ev, err
}

// printAction writes an action on one line.
func printAction(t *testing.T, a Action) string {
	var b strings.Builder
	b.WriteString(a.Kind.String())
	add := func(format string, args ...any) { fmt.Fprintf(&b, " "+format, args...) }
	if a.Leg != nil {
		add("%v", a.Leg)
	}
	switch a.Kind {
	case Write:
		add("%s", strings.TrimSpace(strings.TrimPrefix(string(a.Chunk.Append(nil, *a.Edit)), "data: ")))
	case WriteDone:
		add("prompt=%v ids=%v", a.IDs[:a.Prompt], a.IDs[a.Prompt:])
	case Report:
		add("%s", [...]string{"", "rescuing", "concluded", "exhausted"}[a.Loss])
	case Seek:
		add("tried=%v", a.Tried)
	case Open:
		add("at=%s epoch=%d prompt=%d ids=%v aligned=%v", a.Replica, a.Epoch, a.Prompt, a.IDs, a.Aligned)
	case StreamFrozen:
		add("%d prompt=%d ids=%v", a.Migration, a.Prompt, a.IDs)
	case MigrationBegan:
		add("%d", a.Migration)
	case MigrationEnded:
		add("%d epoch=%d", a.Migration, a.Epoch)
	case Leave:
		add("cached=%d", a.Cached)
	case RescueEnded:
		add("epoch=%d from=%s to=%s length=%d", a.Rescue.Epoch, a.Rescue.From, a.Rescue.To, a.Rescue.Length)
		a.Err = a.Rescue.Err
	}
	if a.Err != nil {
		b.WriteString(": " + a.Err.Error())
	}
	return b.String()
}

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestScenarios runs every testdata/*.txt (package datadriven; -rewrite rewrites the
// expected output) on one machine of the replica r0. A command is an event, and its
// output the actions that the event causes. The commands:
//
//	config rescue hide-ids limit=20     before the first event
//	open a at=r0 limit=3 CHUNK          the first leg, or the leg of a rescue, is opened; limit is the first engine's own, losses those before it
//	open-failed why lost | found r1 | none   answers to open and seek; lost is optional
//	chunk a CHUNK | end a why           answers to read; eof and malformed have special meanings
//	resume                              the answer to resume and wait
//	client-failed
//	migrate from=r0 epoch=1 length=6    of=11,12,… are the ids whose hash it names
//	freeze 2 | migration-failed 2 why   a migration's number is the epoch in which it takes over
//	migration-retried 2
//	text-checked 2 aligned | text-checked 2 unaligned | text-checked 2 fails
//	migration-open 2 b at=r1 cached=3 CHUNK
//	request-ended why                   canceled has a special meaning
//	returned                            the handler has returned
//	state                               prints the state of the stream
//
// A CHUNK is prompt=11,12 ids=1-2 text=ab finish, or abort, or one of usage, done and
// error=500; no-ids leaves out the list of ids, and bytes=7 makes the text that long.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		cfg := Config{Self: "r0", Endpoint: openai.Completions, Resume: resume(t, 20)}
		var c *checker
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			l := line{d}
			if l.Cmd == "config" {
				cfg.CanRescue, cfg.Asked.HideIDs = l.HasArg("rescue"), l.HasArg("hide-ids")
				if limit := l.number("limit"); limit > 0 {
					cfg.Resume = resume(t, limit)
				}
				return ""
			}
			if c == nil {
				c = newChecker(New(cfg))
			}
			if m := c.m; l.Cmd == "state" {
				return fmt.Sprintf("%v at %s, epoch %d, ids %v, aligned %v, held %d", m.state, m.Holder(), m.Epoch(), m.ids, m.aligned, len(m.held))
			}
			acts, err := c.step(l.event(t))
			var out strings.Builder
			for _, a := range acts {
				out.WriteString(formatAction(a) + "\n")
			}
			if err != nil {
				d.Fatalf(t, "%v after\n%s", err, &out)
			}
			return out.String()
		})
	})
}

// line is a command of a scenario.
type line struct{ *datadriven.TestData }

// field returns the value of name=value, "" for none.
func (l line) field(name string) string {
	for _, arg := range l.CmdArgs {
		if arg.Key == name && len(arg.Vals) > 0 {
			return arg.Vals[0]
		}
	}
	return ""
}

func (l line) number(name string) int {
	n, _ := strconv.Atoi(l.field(name))
	return n
}

func (l line) list(name string) (ids []uint32) {
	for s := range strings.SplitSeq(l.field(name), ",") {
		first, last, isRange := strings.Cut(s, "-")
		n, err := strconv.ParseUint(first, 10, 32)
		end := n
		if isRange && err == nil {
			end, err = strconv.ParseUint(last, 10, 32)
		}
		for ; err == nil && n <= end; n++ {
			ids = append(ids, uint32(n))
		}
	}
	return ids
}

// word returns the argument at i, "" for none.
func (l line) word(i int) string {
	if i < len(l.CmdArgs) {
		return l.CmdArgs[i].Key
	}
	return ""
}

// err returns the error that the argument at i names.
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
	text := l.field("text") + strings.Repeat("x", l.number("bytes"))
	return chunk{leg: leg, prompt: l.list("prompt"), ids: l.list("ids"), noIDs: l.HasArg("no-ids"), text: text, finish: l.HasArg("finish"), abort: l.HasArg("abort"),
		usage: l.HasArg("usage"), done: l.HasArg("done"), failed: l.number("error")}.parse(t)
}

// event returns the event that a command describes.
func (l line) event(t *testing.T) Event {
	replica := policies.ReplicaID(l.field("at"))
	n, _ := strconv.Atoi(l.word(0))
	number := policies.Epoch(n) // of a migration: the epoch in which it takes over
	switch l.Cmd {
	case "open":
		return Event{Kind: LegOpened, Leg: l.word(0), Chunk: l.chunk(t, l.word(0)), Replica: replica, Limit: policies.Tokens(l.number("limit")), Losses: l.number("losses")}
	case "open-failed":
		return Event{Kind: OpenFailed, Err: l.err(0), Lost: l.HasArg("lost")}
	case "found":
		return Event{Kind: ReplicaFound, Replica: policies.ReplicaID(l.word(0))}
	case "none":
		return Event{Kind: NoReplica}
	case "chunk":
		return Event{Kind: ChunkArrived, Leg: l.word(0), Chunk: l.chunk(t, l.word(0))}
	case "end":
		return Event{Kind: LegEnded, Leg: l.word(0), Err: l.err(1)}
	case "resume":
		return Event{Kind: Resumed}
	case "client-failed":
		return Event{Kind: ClientFailed}
	case "migrate":
		return Event{Kind: MigrationRequested, From: policies.ReplicaID(l.field("from")), Epoch: policies.Epoch(l.number("epoch")),
			Length: l.number("length"), Hash: prefix.Hash(0).Extend(l.list("of")...)}
	case "freeze":
		return Event{Kind: FreezeRequested, Migration: number}
	case "migration-failed":
		return Event{Kind: MigrationFailed, Migration: number, Err: l.err(1)}
	case "text-checked":
		ev := Event{Kind: TextChecked, Migration: number, Aligned: l.word(1) == "aligned"}
		if l.word(1) == "fails" {
			ev.Err = errEngine
		}
		return ev
	case "migration-retried":
		return Event{Kind: MigrationRetried, Migration: number}
	case "migration-open":
		return Event{Kind: MigrationLegOpened, Migration: number, Leg: l.word(1), Chunk: l.chunk(t, l.word(1)), Replica: replica, Cached: l.number("cached")}
	case "request-ended":
		return Event{Kind: RequestEnded, Err: l.err(0)}
	case "returned":
		return Event{Kind: HandlerReturned}
	}
	l.Fatalf(t, "no such event")
	return Event{}
}

// formatAction writes an action on one line.
func formatAction(a Action) string {
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
		if !a.Aligned {
			add("text=%d", a.TextIDs)
		}
	case StreamFrozen, CheckText:
		add("%d prompt=%d ids=%v", a.Migration, a.Prompt, a.IDs)
	case MigrationBegan, MigrationRenewed:
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

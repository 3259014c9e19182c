package migratord

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// sample returns a state with all fields set.
func sample(t *testing.T, moves int) predecessorState {
	t.Helper()
	f := policies.NewFlow([]policies.Tokens{0, 100})
	f.Arrivals[1], f.Seen = 2.5, 7
	s := predecessorState{
		Load: policies.Load{Running: 3, Waiting: 1, Held: 300, Promised: 40, Iteration: .03}, Flow: f,
		Snapshot: []policies.Batch{{N: 3, SumI: 100}, {}}, Residents: 4, Pinned: 1, PinnedSeconds: 9, Streams: 5,
	}
	for i := range moves {
		b, err := proto.Marshal(&xds.Migration{Id: fmt.Sprint("r0/", i), State: "done", Reason: "because"})
		testkit.NoError(t, err)
		s.Migrations = append(s.Migrations, b)
	}
	return s
}

// TestState checks that the state of the earlier process is added to that of the later one.
func TestState(t *testing.T) {
	want := sample(t, 2)
	b, err := encodeState(want)
	if err != nil || b[0] != stateMessage {
		t.Fatal(err)
	}
	s, err := decodeState(b[1:])
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Fatalf("%+v, %v", s, err)
	}
	own := frontend.Status{Load: policies.Load{Running: 1, Held: 50, Iteration: .07}, Flow: policies.NewFlow([]policies.Tokens{0, 100}), Snapshot: make([]policies.Batch, 2), EngineReady: true}
	got := s.addToStatus(own)
	if want := (policies.Load{Running: 4, Waiting: 1, Held: 350, Promised: 40, Iteration: .04}); got.Load != want {
		t.Errorf("load %+v, want %+v", got.Load, want)
	}
	if got.Flow.Arrivals[1] != 2.5 || got.Snapshot[0].N != 3 || !got.EngineReady {
		t.Errorf("%+v", got)
	}
	if own.Snapshot[0].N != 0 {
		t.Error("the own snapshot has changed")
	}
	// Without a predecessor nothing of the own load changes, whatever fields it has.
	setFields(reflect.ValueOf(&own.Load).Elem())
	if got := (predecessorState{}).addToStatus(own); !reflect.DeepEqual(got, own) {
		t.Errorf("the zero state adds %+v", got)
	}
	if got := s.addToStatus(frontend.Status{}); got.Load.Iteration != .03 {
		t.Errorf("an idle process adds the iteration time %v", got.Load.Iteration)
	}
	x := &xds.LoadReport{Residents: 1, Pinned: 1, PinnedSeconds: 2, Streams: 1, Migrations: []*xds.Migration{{Id: "own"}}}
	if s.addToReport(x); x.Residents != 5 || x.Pinned != 2 || x.PinnedSeconds != 9 || x.Streams != 6 || len(x.Migrations) != 3 || x.Migrations[2].Id != "r0/1" {
		t.Errorf("%+v", x)
	}
	// If the migrations do not fit, the first ones are sent.
	many := sample(t, 10_000)
	if b, err = encodeState(many); err != nil || len(b) > maxMessage {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	s, err = decodeState(b[1:])
	n := len(s.Migrations)
	if err != nil || s.Load != want.Load || len(b) < maxMessage/3 || !reflect.DeepEqual(s.Migrations, many.Migrations[:n]) {
		t.Errorf("%d bytes, %d migrations: %+v, %v", len(b), n, s.Load, err)
	}
}

// setFields sets every number in a struct and in the structs that it has.
func setFields(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Kind() == reflect.Struct:
			setFields(f)
		case f.CanInt():
			f.SetInt(int64(i + 1))
		case f.CanUint():
			f.SetUint(uint64(i + 1))
		case f.CanFloat():
			f.SetFloat(float64(i + 1))
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"load":{"Running":1},"flow":{"Edges":[0]}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(b)
		if err != nil {
			return
		}
		got := s.addToStatus(frontend.Status{Flow: policies.NewFlow([]policies.Tokens{0})})
		if err := got.Load.Validate(); err != nil {
			t.Error(err)
		}
		if err := got.Flow.Validate(); err != nil {
			t.Error(err)
		}
		s.addToReport(new(xds.LoadReport))
	})
}

func transferEnvelope(seller string, number uint64, kind move.Kind, request string) *api.Envelope {
	return &api.Envelope{From: "r1", Body: &api.Envelope_Transfer{Transfer: &api.Transfer{Kind: uint32(kind), Seller: seller, Number: number, Request: request}}}
}

// TestIsForPredecessor checks that an earlier process gets only the messages about its own deals and
// its clients' streams.
func TestIsForPredecessor(t *testing.T) {
	d := &Daemon{id: "r0", startedAt: time.UnixMicro(1000)}
	market := func(seller string, number uint64) *api.Envelope {
		return &api.Envelope{Body: &api.Envelope_Market{Market: &api.Market{Seller: seller, Number: number}}}
	}
	for i, c := range []struct {
		e    *api.Envelope
		want bool
	}{
		{market("r0", 999), true},
		{market("r0", 1000), false},
		{market("r1", 999), false}, // a bid request: only the later process buys
		{transferEnvelope("r0", 999, move.Pulled, ""), true},
		{transferEnvelope("r0", 1001, move.Pulled, ""), false},
		{transferEnvelope("r1", 999, move.Accept, "r0/5"), false},
		{transferEnvelope("r1", 2000, move.Commit, "r0/999"), true},
		{transferEnvelope("r1", 2000, move.Query, "r0/999"), true},
		{transferEnvelope("r1", 5, move.Commit, "r0/1000"), false},
		{transferEnvelope("r1", 5, move.Commit, "r00/999"), false},
		{transferEnvelope("r1", 5, move.Commit, "nonsense"), false},
		{&api.Envelope{Body: &api.Envelope_Summary{Summary: &api.Summary{}}}, false},
		{&api.Envelope{}, false},
	} {
		if got := d.isForPredecessor(c.e); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}

// pipe is a Link whose other end is the test.
type pipe struct {
	in, out chan []byte
	once    sync.Once
	closed  chan struct{}
}

func newPipe() *pipe {
	return &pipe{in: make(chan []byte), out: make(chan []byte), closed: make(chan struct{})}
}

func (p *pipe) Send(b []byte) error {
	select {
	case p.out <- bytes.Clone(b):
		return nil
	case <-p.closed:
		return net.ErrClosed
	}
}

func (p *pipe) Receive() ([]byte, error) {
	select {
	case b, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		return b, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

var _ Link = (*pipe)(nil)

// TestPrefillRanges checks that invalid ranges make all prefill replicas those of all prompts.
func TestPrefillRanges(t *testing.T) {
	for _, c := range []struct {
		in   []*xds.PrefillRange
		want []policies.PrefillRange
	}{
		{[]*xds.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9}}, []policies.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9, High: policies.Unbounded}}},
		{nil, nil},
		{[]*xds.PrefillRange{{Replica: "p", Low: -1, High: 9}}, nil},
		{[]*xds.PrefillRange{{Replica: "p", High: 9}, {Replica: "q", Low: 9, High: 9}}, nil},
		{[]*xds.PrefillRange{{Replica: "p", High: -1}}, nil},
		{slices.Repeat([]*xds.PrefillRange{{Replica: "p"}}, maxPrefillRanges+1), nil},
	} {
		if got := decodePrefillRanges(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

// TestOldMeanIsNotSentOn checks that the stage's mean load counts at an earlier process as long as it does here.
func TestOldMeanIsNotSentOn(t *testing.T) {
	for age, known := range map[time.Duration]bool{0: true, time.Minute: false} {
		o := controlView{view: market.View{StageMean: 7, MeanAt: time.Now().Add(-age)}}
		if x := o.update(); x.StageMean != 7 || x.MeanKnown != known {
			t.Errorf("%v old: %+v", age, x)
		}
	}
	if x := new(controlView).update(); x.MeanKnown {
		t.Errorf("without a reply: %+v", x)
	}
}

// TestFollowPredecessor checks that the messages for an earlier process are forwarded and its load
// counts as long as it runs.
func TestFollowPredecessor(t *testing.T) {
	d := &Daemon{cfg: Config{Logger: slog.New(slog.DiscardHandler)}, id: "r0", startedAt: time.UnixMicro(1000)}
	if d.predecessor.forward(transferEnvelope("r0", 1, move.Pulled, "")) {
		t.Error("an envelope was forwarded without an earlier process")
	}
	d.predecessor.expected = true
	if !d.predecessor.forward(transferEnvelope("r0", 1, move.Pulled, "")) {
		t.Error("an earlier process that is not connected yet counts as none")
	}
	d.controlView.view.Draining = true
	p, over := newPipe(), make(chan struct{})
	go func() {
		defer close(over)
		d.FollowPredecessor(t.Context(), p)
	}()
	message, err := encodeState(sample(t, 1))
	testkit.NoError(t, err)
	p.in <- message
	if b := <-p.out; b[0] != controlUpdateMessage || !bytes.Contains(b, []byte(`"Drain":true`)) {
		t.Errorf("%s", b)
	}
	if s := d.predecessor.currentState(); s.Residents != 4 {
		t.Errorf("%+v", s)
	}
	p.in <- []byte{stateMessage, '{'}
	p.in <- []byte{'?', 1, 2}
	p.in <- nil
	want := transferEnvelope("r0", 1, move.Pulled, "")
	if !d.predecessor.forward(want) {
		t.Error("not passed on")
	}
	var got api.Envelope
	if b := <-p.out; b[0] != envelopeMessage || proto.Unmarshal(b[1:], &got) != nil || !proto.Equal(&got, want) {
		t.Errorf("%s", b)
	}
	close(p.in)
	<-over
	if s := d.predecessor.currentState(); s.Residents != 0 || d.predecessor.forward(want) {
		t.Error("it has ended, and its load still counts")
	}
	d.predecessor.expected = true
	d.FollowPredecessor(t.Context(), nil)
	if d.predecessor.forward(want) {
		t.Error("it had ended before, and an envelope was forwarded")
	}
}

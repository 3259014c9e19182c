package frontend

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Stream is one client's request, from its placement to its end. Its methods
// are safe for concurrent use.
//
// What happens to it is decided by a session.Machine. The Stream owns what the
// machine must not know: goroutines, locks, legs and the client. One goroutine, the
// pump, reads the present leg and writes to the client; it never writes with mu
// held, so that a slow client delays no other goroutine. A migration steps the
// machine from its own goroutine.
type Stream struct {
	// Fixed once the stream has begun.
	server    *Server
	id        string
	cfg       *session.Config    // the machine's
	header    http.Header        // of the client, what engines may see
	requestID string             // of the client's request, for the log
	begun     time.Time          // when the client's request arrived
	tenant    string             // of the client's request
	root      prefix.Hash        // that the ids of its prompt extend
	dialect   dialect.Dialect    // of all its legs, whatever the own engine says later of how it was started
	ctx       context.Context    // of the client's request
	cancel    context.CancelFunc // ends ctx

	firstLeg session.Leg
	// engineFingerprint is the engine's system_fingerprint, which engines send only at the
	// end of a stream. It is shared with the server; nil while a peer's engine runs the
	// first leg.
	engineFingerprint *atomic.Pointer[[]byte]

	// The pump's.
	client    clientWriter
	buf       [3]session.Action // of the step in progress
	rescue    rescue
	awaited   *migration     // the migration whose end the pump waits for
	newPrompt *awaitedPrompt // its prompt, until its token ids have come; nil for none

	// Guarded by mu.
	mu          sync.Mutex
	machine     *session.Machine
	migration   *migration         // under way; nil for none
	openingAt   policies.ReplicaID // the peer at which a leg is being opened; "" for none
	openingCall *call              // the call that opens that leg; nil for none
}

// newStream returns the stream of a request that is about to be sent to an engine.
func (srv *Server) newStream(ctx context.Context, c session.Config, client clientWriter, cancel context.CancelFunc) *Stream {
	srv.mu.Lock()
	srv.lastStream++
	c.Request.ID = string(srv.cfg.Replica) + "/" + strconv.FormatUint(srv.lastStream, 10)
	srv.mu.Unlock()
	c.Self, c.CanRescue = srv.cfg.Replica, srv.cfg.Rescuer != nil
	m := session.New(c)
	return &Stream{server: srv, id: c.Request.ID, cfg: m.Config(), client: client, ctx: ctx, cancel: cancel, machine: m}
}

// Request describes the stream as it is now; the counts are those that the
// client has.
func (s *Stream) Request() policies.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Request()
}

// Splices returns how many legs took over from others.
func (s *Stream) Splices() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Splices()
}

// currentHolder returns where the stream runs.
func (s *Stream) currentHolder() Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Holder{Replica: s.machine.Holder(), Epoch: s.machine.Epoch(), Pending: s.machine.Pending()}
}

// peerLegLocked returns the leg that a peer runs, nil if the own engine does.
func (s *Stream) peerLegLocked() *wireLeg {
	if s.machine.Holder() == s.server.cfg.Replica {
		return nil
	}
	leg, _ := s.machine.Leg().(*wireLeg)
	return leg
}

// setOpening records that a call opens a leg at a peer; a nil call means that no leg is
// being opened.
func (s *Stream) setOpening(at policies.ReplicaID, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openingAt, s.openingCall = at, c
}

// clearOpening resets what setOpening recorded, unless a later call has replaced it.
func (s *Stream) clearOpening(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openingCall == c {
		s.openingAt, s.openingCall = "", nil
	}
}

// run relays the answer of an opened leg to the client until the stream ends. It returns
// an error if an engine ended the stream early; the client then has an error event.
func (s *Stream) run(opened openedLeg, l losses) error {
	replica := s.server.replicaOf(opened.target)
	if opened.target.Address == "" {
		s.engineFingerprint = &s.server.engineFingerprint
	}
	s.client.begin(opened.header)
	limit := s.server.outputLimit(opened, s.cfg.Endpoint, s.cfg.Request.MaxOutput)
	return s.pump(session.Event{Kind: session.LegOpened, Leg: opened.leg, Chunk: opened.first, Replica: replica, Limit: limit, Losses: l.earlier + l.here})
}

// pump steps the machine with one event after the other until the stream ends. It
// runs on the goroutine of the request's handler.
func (s *Stream) pump(ev session.Event) error {
	defer s.end()
	stop := context.AfterFunc(s.ctx, func() {
		s.step(&session.Event{Kind: session.RequestEnded, Err: context.Cause(s.ctx)}, nil)
	})
	defer stop()
	s.firstLeg = ev.Leg
	for {
		if over, err := s.pumpEvent(&ev); over {
			return err
		}
	}
}

// pumpEvent steps the machine with an event of the pump and carries out the
// actions in order. The last one is a directive: it leads to the next event, which
// replaces ev, or to the stream's end.
func (s *Stream) pumpEvent(ev *session.Event) (over bool, err error) {
	s.storeFingerprint(ev)
	actions := s.step(ev, s.buf[:0])
	if s.newPrompt != nil {
		s.learnPrompt(ev)
	}
	for i := range actions {
		var failed error // to write to the client
		switch a := &actions[i]; a.Kind {
		case session.Write:
			failed = s.client.write(a.Chunk, *a.Edit)
		case session.WriteDone:
			failed = s.client.done(a.Chunk, a.IDs[:a.Prompt:a.Prompt], a.IDs[a.Prompt:])
		case session.WriteError:
			s.client.fail(engineLostProblem(a.Err))
		case session.Probe:
			s.server.probeNow()
		case session.Report:
			s.reportLoss(a)
		case session.RescueEnded:
			s.reportRescue(a.Rescue)
		case session.Read:
			*ev = s.read(a.Leg.(*wireLeg))
		case session.Resume:
			*ev = session.Event{Kind: session.Resumed}
		case session.Wait:
			<-s.awaited.over.Done()
			*ev = session.Event{Kind: session.Resumed}
		case session.Seek:
			*ev = s.seek(a)
		case session.Open:
			*ev = s.openRescueLeg(a)
		case session.End:
			return true, a.Err
		}
		if failed != nil {
			*ev = session.Event{Kind: session.ClientFailed}
			return false, nil
		}
	}
	return false, nil
}

// read reads the leg's next event.
func (s *Stream) read(leg *wireLeg) session.Event {
	c, err := leg.next()
	if err != nil {
		return session.Event{Kind: session.LegEnded, Leg: leg, Err: err, Fingerprint: s.loadFingerprint()}
	}
	return session.Event{Kind: session.ChunkArrived, Leg: leg, Chunk: c}
}

// step steps the machine and carries out the actions that do not belong to the pump: it
// is stepLocked, then closeLegs outside the lock. buf must be empty; the actions are
// appended to it.
func (s *Stream) step(ev *session.Event, buf []session.Action) []session.Action {
	s.mu.Lock()
	buf = s.stepLocked(ev, buf)
	s.mu.Unlock()
	closeLegs(buf)
	return buf
}

// stepLocked steps the machine with s.mu held. Before every event except a chunk it
// passes on that the request's context has ended, because the pump's AfterFunc for that
// may not have run yet. buf must be empty; the actions are appended to it.
func (s *Stream) stepLocked(ev *session.Event, buf []session.Action) []session.Action {
	if ev.Kind != session.ChunkArrived && s.ctx.Err() != nil {
		buf = s.machine.Step(&session.Event{Kind: session.RequestEnded, Err: context.Cause(s.ctx)}, buf)
	}
	if ev.Kind == session.LegOpened {
		s.openingAt, s.openingCall = "", nil
	}
	buf = s.machine.Step(ev, buf)
	for i := range buf {
		switch a := &buf[i]; a.Kind {
		case session.MigrationBegan:
			s.migration = newMigration(s, a.Migration)
		case session.MigrationRenewed:
			s.migration.number = a.Migration
		case session.CheckText:
			s.migration.checks <- a.IDs // the one before was taken before it was answered
		case session.StreamFrozen:
			s.migration.freezeLocked(a.IDs, a.Prompt, time.Now())
		case session.MigrationEnded:
			s.migration.endLocked(a.Epoch, a.Err, time.Now())
			s.migration = nil
		case session.Wait:
			s.awaited = s.migration
			s.awaited.lose()
		}
	}
	return buf
}

// closeLegs closes the legs that the actions of a step name.
func closeLegs(actions []session.Action) {
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case session.Close:
			a.Leg.(*wireLeg).close()
		case session.Leave:
			a.Leg.(*wireLeg).leave(a.Cached)
		}
	}
}

// end releases what the stream holds. The handler returns after it, so nothing may
// be written to the client any more.
func (s *Stream) end() {
	s.step(&session.Event{Kind: session.HandlerReturned}, nil)
	s.mu.Lock()
	leg, done := s.machine.Leg(), s.machine.Done()
	s.mu.Unlock()
	if l, ok := leg.(*wireLeg); ok && done {
		l.drainAndClose()
	} else if ok {
		l.close()
	}
	s.client.close()
	s.cancel()
}

// loadFingerprint returns the system_fingerprint of the first leg's engine, nil while it
// is unknown.
func (s *Stream) loadFingerprint() []byte {
	if s.engineFingerprint == nil {
		return nil
	}
	if known := s.engineFingerprint.Load(); known != nil {
		return *known
	}
	return nil
}

// storeFingerprint stores the fingerprint of a chunk of the first leg, for all streams.
func (s *Stream) storeFingerprint(ev *session.Event) {
	if ev.Chunk == nil {
		return
	}
	f := ev.Chunk.Fingerprint() // first, because few chunks have one
	if f == nil || s.engineFingerprint == nil || ev.Leg != s.firstLeg || bytes.Equal(s.loadFingerprint(), f) {
		return
	}
	kept := bytes.Clone(f)
	s.engineFingerprint.Store(&kept)
}

// maxLoggedID bounds what a log line shows of a client's request id, in bytes.
const maxLoggedID = 128

// requestLog returns the logger for lines about a request. They carry the id that the
// proxy has given it, or its client, as the proxy's access log does.
func (srv *Server) requestLog(h http.Header) *slog.Logger {
	return withRequestID(srv.log, h.Get(requestIDHeader))
}

func withRequestID(log *slog.Logger, id string) *slog.Logger {
	if id == "" {
		return log
	}
	return log.With("request_id", id[:min(len(id), maxLoggedID)])
}

// log returns the logger for lines about the stream. Its id is the request's name in the
// logs of all migrators.
func (s *Stream) log() *slog.Logger {
	return withRequestID(s.server.log, s.requestID).With("request", s.id)
}

package control

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Admitter decides which modules may come to the slots of the fleet, and how far
// they may go: signatures, kinds, the site's own rules. It is called by one
// goroutine at a time; the error is shown to the operator and in nothing changed.
type Admitter interface {
	Admit(ctx context.Context, p Push) (Admitted, error)
}

// Push is what an operator asks for one slot: a new module, or another goal for
// the one on trial.
type Push struct {
	Slot     string
	Goal     policyslots.Goal // policyslots.Proven: to pass no gates
	Permille int
	Scope    string
	// Module and Signature are the files. They are not to be changed.
	Module, Signature []byte
	// Configuration is what hosts shall configure the module with; may be empty. It
	// is not signed: the operator answers for it, as for the goal.
	Configuration []byte
	// Current is the slot as it is stored. Its candidate is this module, by the
	// digest, where another goal is asked for.
	Current policyslots.Slot
	By      string // who asks; may be empty
}

// Admitted is what the statement of an admitted module says.
type Admitted struct {
	Generation    uint64
	Name, Version string
	SHA256        policyslots.Digest
	Configuration []byte // what hosts configure it with; may be empty
	Signers       []string
}

// Bounds of a push.
const (
	// maxPush bounds the body: a module and its signature in base64, and what
	// JSON or multipart puts around them.
	maxPush     = (policyslots.MaxModule+policyslots.MaxSignature+policyslots.MaxConfiguration)*4/3 + 64<<10
	pushTimeout = 25 * time.Second
	// uploadTimeout is how long the body may take of it once it is read, and maxUploads
	// how many are read at a time: each is held in memory.
	uploadTimeout = 15 * time.Second
	maxUploads    = 4
)

var errTooLarge = fmt.Errorf("a module has at most %d MiB, and its signature %d KiB", policyslots.MaxModule>>20, policyslots.MaxSignature>>10)

// policyRoutes adds what is asked and ordered about policies.
func (c *Control) policyRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /policies", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, c.Policies(r.URL.Query()["slot"]...))
	})
	if c.cfg.Records != nil {
		mux.Handle("GET /policies/records", c.cfg.Records)
	}
	mux.HandleFunc("POST /policies/push", c.push)
	mux.Handle("POST /policies/goal", ordered(c.policyOrder(c.moveGoal)))
	mux.Handle("POST /policies/rollback", ordered(c.policyOrder(c.rollback)))
}

// push answers POST /policies/push?slot=&goal=&permille=&scope=&by=: the slot may be
// given several times. The body is JSON with the base64 of "module" and
// "signature", or a form with those two files; with "configuration" where the module
// takes one.
func (c *Control) push(w http.ResponseWriter, r *http.Request) {
	if !asked(w, r) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), pushTimeout)
	defer cancel()
	out, err := c.takePush(ctx, w, r)
	if err != nil {
		answer(w, codeOf(err), problem{err.Error()})
		return
	}
	answer(w, http.StatusOK, out)
}

func (c *Control) takePush(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
	if c.cfg.Admitter == nil {
		return nil, errOff
	}
	o, err := policyOrderOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if o.goal == "" {
		o.goal = policyslots.Shadow
	}
	scopes := make(map[string]string, len(o.slots))
	for _, slot := range o.slots {
		if scopes[slot], err = c.scoped(slot, o.goal, o.scope, nil); err != nil {
			return nil, err
		}
		if err := policyslots.CheckGoal(slot, o.goal, o.permille, scopes[slot]); err != nil {
			return nil, malformed("slot " + slot + ": " + err.Error())
		}
	}
	body, err := c.upload(ctx, w, r)
	if err != nil {
		return nil, err
	}
	done, err := turn(ctx, c.pushes)
	if err != nil {
		return nil, err
	}
	defer done()
	module, signature := body.Module, body.Signature
	sum := policyslots.Digest(sha256.Sum256(module))
	trials := make(map[string]policyslots.Trial, len(o.slots))
	for _, slot := range o.slots {
		a, err := c.cfg.Admitter.Admit(ctx, Push{
			Slot: slot, Goal: o.goal, Permille: o.permille, Scope: scopes[slot], Module: module, Signature: signature, Configuration: body.Configuration,
			Current: policyslots.Of(c.keeper.stored(), slot).Clone(), By: o.by,
		})
		if err != nil {
			return nil, refuse(slot, err)
		}
		if a.SHA256 != sum {
			return nil, refuse(slot, errors.New("the statement is about another module"))
		}
		if err := c.held(slot, a.Generation, o.goal); err != nil {
			return nil, err
		}
		now := moment(time.Now())
		trials[slot] = policyslots.Trial{
			Module: policyslots.Module{
				Generation: a.Generation, Name: a.Name, Version: a.Version, SHA256: sum, Size: len(module), Signature: signature,
				Configuration: a.Configuration, Signers: a.Signers, By: o.by, At: now,
			},
			Goal: o.goal, Permille: o.permille, Scope: scopes[slot], Since: now,
		}
	}
	// The bytes come before the name: who reads the one finds the other. What is
	// there already and was lost, is put back.
	if err := c.cfg.Modules.Put(store.Digest(sum), module); err != nil {
		return nil, err
	}
	if err := c.keeper.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return understood(s.Push(trials[s.Kind]))
	}); err != nil {
		return nil, err
	}
	return c.Policies(o.slots...), nil
}

// turn waits for a place, which done gives back.
func turn(ctx context.Context, places chan struct{}) (done func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, errors.New("other modules are being pushed; try again")
	}
}

// upload reads the body of a push, before its turn: who is slow keeps nobody
// waiting.
func (c *Control) upload(ctx context.Context, w http.ResponseWriter, r *http.Request) (pushBody, error) {
	done, err := turn(ctx, c.uploads)
	if err != nil {
		return pushBody{}, err
	}
	defer done()
	r.Body = http.MaxBytesReader(w, r.Body, maxPush)
	most := uploadTimeout
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end))
	}
	return readWithin(w, r, most)
}

// readWithin reads a push that has come within a time.
func readWithin(w http.ResponseWriter, r *http.Request, most time.Duration) (pushBody, error) {
	conn := http.NewResponseController(w)
	if err := conn.SetReadDeadline(time.Now().Add(most)); err != nil {
		return pushBody{}, err
	}
	body, err := readPush(r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return body, fmt.Errorf("the module has not come within %v: %w", most.Round(time.Millisecond), err)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return body, err
}

// understood marks the errors of a change that say what was asked wrongly.
func understood(s policyslots.Slot, err error) (policyslots.Slot, error) {
	for _, known := range [...]error{policyslots.ErrReplayed, policyslots.ErrNoCandidate, policyslots.ErrOther, policyslots.ErrNative} {
		if errors.Is(err, known) {
			return s, err
		}
	}
	if err != nil {
		return s, malformed(err.Error())
	}
	return s, nil
}

// pushBody is the body of a push.
type pushBody struct {
	Module        []byte `json:"module"`
	Signature     []byte `json:"signature"`
	Configuration []byte `json:"configuration"`
}

// readPush reads the body of a push.
func readPush(r *http.Request) (body pushBody, err error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("content-type"))
	switch {
	case err == nil && kind == "application/json":
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return body, unread(err)
		}
	case err == nil && kind == "multipart/form-data":
		if body, err = readForm(multipart.NewReader(r.Body, params["boundary"])); err != nil {
			return body, err
		}
	default:
		return body, malformed("send JSON with the base64 of module and signature, or a multipart form with these files")
	}
	switch {
	case len(body.Module) > policyslots.MaxModule || len(body.Signature) > policyslots.MaxSignature:
		return body, errTooLarge
	case len(body.Configuration) > policyslots.MaxConfiguration:
		return body, malformed(fmt.Sprintf("a configuration has at most %d KiB", policyslots.MaxConfiguration>>10))
	case len(body.Module) == 0 || len(body.Signature) == 0:
		return body, malformed("give module and signature; cascade policy sign makes one for the other")
	}
	return body, nil
}

// unread says why a body was not read.
func unread(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return malformed("body: " + err.Error())
}

func readForm(m *multipart.Reader) (body pushBody, err error) {
	for {
		part, err := m.NextPart()
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return body, unread(err)
		}
		switch part.FormName() {
		case "module":
			body.Module, err = io.ReadAll(io.LimitReader(part, policyslots.MaxModule+1))
		case "configuration":
			body.Configuration, err = io.ReadAll(io.LimitReader(part, policyslots.MaxConfiguration+1))
		case "signature":
			body.Signature, err = io.ReadAll(io.LimitReader(part, policyslots.MaxSignature+1))
		default:
			err = fmt.Errorf("part %.40q: want module, signature and configuration", part.FormName())
		}
		if err != nil {
			return body, unread(err)
		}
	}
}

// policyAsk is the query of an order about policies.
type policyAsk struct {
	slots      []string
	generation uint64 // 0: whichever is meant
	goal       policyslots.Goal
	permille   int
	scope, by  string
	reason     string
}

func policyOrderOf(q url.Values) (o policyAsk, err error) {
	o = policyAsk{slots: q["slot"], goal: policyslots.Goal(q.Get("goal")), scope: q.Get("scope"), by: q.Get("by"), reason: q.Get("reason")}
	if len(o.slots) == 0 {
		return o, malformed("name the slot: ?slot=KIND, one of " + strings.Join(policyslots.Kinds(), ", "))
	}
	seen := make(map[string]bool)
	for _, slot := range o.slots {
		if !policyslots.Known(slot) || seen[slot] {
			return o, malformed(fmt.Sprintf("slot %.40q: want each once, of %s", slot, strings.Join(policyslots.Kinds(), ", ")))
		}
		seen[slot] = true
	}
	if text := q.Get("permille"); text != "" {
		if o.permille, err = strconv.Atoi(text); err != nil {
			return o, malformed(fmt.Sprintf("permille %.40q: give a number from 1 to %d", text, policyslots.Permilles-1))
		}
	}
	if text := q.Get("generation"); text != "" {
		if o.generation, err = strconv.ParseUint(text, 10, 64); err != nil {
			return o, malformed(fmt.Sprintf("generation %.40q: give its number", text))
		}
	}
	if len(o.by) > maxBy || !printable(o.by) {
		return o, malformed(fmt.Sprintf("by: give a name of up to %d printable bytes", maxBy))
	}
	if len(o.reason) > policyslots.MaxReason || !printable(o.reason) {
		return o, malformed(fmt.Sprintf("reason: give up to %d printable bytes", policyslots.MaxReason))
	}
	return o, nil
}

// policyOrder makes an order about the slots of ?slot=.
func (c *Control) policyOrder(give func(context.Context, policyAsk) error) order {
	return func(ctx context.Context, q url.Values) (any, error) {
		o, err := policyOrderOf(q)
		if err != nil {
			return nil, err
		}
		if err := give(ctx, o); err != nil {
			return nil, err
		}
		return c.Policies(o.slots...), nil
	}
}

// moveGoal sets how far the candidates of some slots may go. They are admitted
// again: what a site allows depends on the goal.
func (c *Control) moveGoal(ctx context.Context, o policyAsk) error {
	if c.cfg.Admitter == nil {
		return errOff
	}
	done, err := turn(ctx, c.pushes)
	if err != nil {
		return err
	}
	defer done()
	now := moment(time.Now())
	generations, scopes := make(map[string]uint64, len(o.slots)), make(map[string]string, len(o.slots))
	for _, kind := range o.slots {
		s := policyslots.Of(c.keeper.stored(), kind).Clone()
		// What is asked wrongly is told before rules are asked.
		if scopes[kind], err = c.scoped(kind, o.goal, o.scope, s.Candidate); err != nil {
			return err
		}
		if _, err := understood(s.Move(now, o.generation, o.goal, o.permille, scopes[kind])); err != nil {
			return err
		}
		t := s.Candidate
		if err := c.held(kind, t.Generation, o.goal); err != nil {
			return err
		}
		code, err := c.cfg.Modules.Get(store.Digest(t.SHA256))
		if err != nil {
			return fmt.Errorf("slot %s: the bytes of generation %d (%s, sha256 %s) are lost: %w; push the same module and signature again, which puts them back",
				kind, t.Generation, t.Name, t.SHA256, err)
		}
		if _, err := c.cfg.Admitter.Admit(ctx, Push{
			Slot: kind, Goal: o.goal, Permille: o.permille, Scope: scopes[kind], Module: code, Signature: t.Signature, Configuration: t.Configuration, Current: s, By: o.by,
		}); err != nil {
			return refuse(kind, err)
		}
		generations[kind] = t.Generation
	}
	return c.keeper.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return understood(s.Move(now, generations[s.Kind], o.goal, o.permille, scopes[s.Kind]))
	})
}

// held refuses to let a generation go where the gates of a host would end it, by what
// it has shown in shadow: there it can still be watched.
func (c *Control) held(kind string, generation uint64, goal policyslots.Goal) error {
	if goal != policyslots.Canary && goal != policyslots.Active {
		return nil
	}
	now := time.Now()
	if why := policyslots.Against(kind, generation, now, c.keeper.reports(now)); why != "" {
		return refuse(kind, fmt.Errorf("generation %d stays where it is, because gates would end it further on: %s; see \"cascade policy records\" and \"diff\" for which; "+
			"\"--to proven\" asks no gate", generation, why))
	}
	return nil
}

// rollback ends the newest generation of some slots. Nobody has to admit that.
func (c *Control) rollback(ctx context.Context, o policyAsk) error {
	now, reason := moment(time.Now()), o.reason
	if reason == "" {
		reason = "rolled back by an operator"
	}
	return c.keeper.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return understood(s.Rollback(now, o.generation, reason, o.by))
	})
}

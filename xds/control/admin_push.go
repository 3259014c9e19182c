package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Admitter decides which modules are admitted to the slots of the fleet, and
// for which goals: by signatures, kinds and the site's own rules. It is called
// by one goroutine at a time; its error is shown to the operator, and nothing
// is changed.
type Admitter interface {
	Admit(ctx context.Context, p Push) (Admitted, error)
}

// Push is a request for one slot: a new module, or another goal for the
// candidate.
type Push struct {
	Slot     lifecycle.Kind
	Goal     lifecycle.Goal // ToStable skips the gates
	Permille int
	Scope    string
	// Module and Signature are the files. They must not be changed.
	Module, Signature []byte
	// Configuration is passed to the module on the hosts; may be empty. It is
	// not signed: the operator is responsible for it, as for the goal.
	Configuration []byte
	// Current is the slot as it is stored. For another goal, its candidate is
	// this module, by the digest.
	Current policyslots.Slot
	By      string // the operator; may be empty
}

// Admitted is the content of an admitted module's statement.
type Admitted struct {
	Generation    lifecycle.Generation
	Name, Version string
	SHA256        lifecycle.Digest
	Configuration []byte // for the hosts; may be empty
	Signers       []string
	Caveat        string // when the module decides nothing in this fleet; "" where it always decides
}

// Bounds of a push.
const (
	// maxPush bounds the body: a module and its signature in base64, with the
	// syntax of JSON.
	maxPush     = (policyslots.MaxModule+policyslots.MaxSignature+policyslots.MaxConfiguration)*4/3 + 64<<10
	pushTimeout = 25 * time.Second
	// uploadTimeout is how long the body may take of pushTimeout, and
	// maxUploads how many bodies are read at a time: each is held in memory.
	uploadTimeout = 15 * time.Second
	maxUploads    = 4
)

var errTooLarge = fmt.Errorf("module or signature too large: the limits are %d MiB and %d KiB", policyslots.MaxModule>>20, policyslots.MaxSignature>>10)

// handlePush answers POST /policies/push?slot=&goal=&permille=&scope=&by=,
// where slot may be repeated. The body is JSON with the base64 of "module" and
// "signature", and of "configuration" if the module takes one.
func (c *Control) handlePush(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), pushTimeout)
	defer cancel()
	out, err := c.admitPush(ctx, w, r)
	c.observer.expire()
	writeResult(w, out, err)
}

func (c *Control) admitPush(ctx context.Context, w http.ResponseWriter, r *http.Request) (any, error) {
	if c.cfg.Admitter == nil {
		return nil, errPoliciesOff
	}
	o, err := parsePolicyQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if o.goal == 0 {
		o.goal = lifecycle.ToShadow
	}
	scopes := make(map[lifecycle.Kind]string, len(o.slots))
	for _, slot := range o.slots {
		if scopes[slot], err = c.resolveScope(slot, o.goal, o.scope, nil); err != nil {
			return nil, err
		}
		if err := policyslots.CheckGoal(slot, o.goal, o.permille, scopes[slot]); err != nil {
			return nil, badRequest("slot " + string(slot) + ": " + err.Error())
		}
	}
	body, err := c.readUpload(ctx, w, r)
	if err != nil {
		return nil, err
	}
	done, err := acquire(ctx, c.pushes)
	if err != nil {
		return nil, err
	}
	defer done()
	module, signature := body.Module, body.Signature
	sum := lifecycle.Sum(module)
	trials := make(map[lifecycle.Kind]policyslots.Trial, len(o.slots))
	var warnings []string
	for _, slot := range o.slots {
		a, err := c.cfg.Admitter.Admit(ctx, Push{
			Slot: slot, Goal: o.goal, Permille: o.permille, Scope: scopes[slot], Module: module, Signature: signature, Configuration: body.Configuration,
			Current: policyslots.Find(c.slots.stored(), slot).Clone(), By: o.by,
		})
		if err != nil {
			return nil, inadmissibleError(slot, err)
		}
		if a.SHA256 != sum {
			return nil, inadmissibleError(slot, errors.New("the statement is for another module"))
		}
		if err := c.checkGates(slot, a.Generation, o.goal); err != nil {
			return nil, err
		}
		if a.Caveat != "" {
			warnings = append(warnings, "slot "+string(slot)+": "+a.Caveat)
		}
		now := storedTime(time.Now())
		trials[slot] = policyslots.Trial{
			Module: policyslots.Module{
				Generation: a.Generation, Name: a.Name, Version: a.Version, SHA256: sum, Size: len(module), Signature: signature,
				Configuration: a.Configuration, Signers: a.Signers, By: o.by, At: now,
			},
			Goal: o.goal, Permille: o.permille, Scope: scopes[slot], Since: now,
		}
	}
	first := trials[o.slots[0]] // of all slots it is the same module
	describeOrder(w, "generation=%d name=%s signers=%s sha256=%s", first.Generation, first.Name, strings.Join(first.Signers, ","), sum)
	// The bytes are stored before the slot that names them, so that a reader of
	// the slot finds them. This also restores bytes that were lost.
	if err := c.cfg.Store.PutModule(ctx, sum, module); err != nil {
		return nil, err
	}
	if err := c.slots.change(ctx, o.slots, func(s policyslots.Slot) (policyslots.Slot, error) {
		return asBadRequest(s.Push(trials[s.Kind]))
	}); err != nil {
		return nil, err
	}
	out := c.changedPolicies(o.slots)
	out.Warnings = warnings
	return out, nil
}

// acquire waits for a free place and returns the function that releases it.
func acquire(ctx context.Context, places chan struct{}) (done func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, errors.New("too many modules are being pushed; try again")
	}
}

// readUpload reads the body of a push before the push waits for its turn, so that a
// slow client delays no other push.
func (c *Control) readUpload(ctx context.Context, w http.ResponseWriter, r *http.Request) (pushBody, error) {
	done, err := acquire(ctx, c.uploads)
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

// readWithin reads a push that has to arrive within a time.
func readWithin(w http.ResponseWriter, r *http.Request, most time.Duration) (pushBody, error) {
	conn := http.NewResponseController(w)
	if err := conn.SetReadDeadline(time.Now().Add(most)); err != nil {
		return pushBody{}, err
	}
	body, err := readPush(r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return body, fmt.Errorf("module not received within %v: %w", most.Round(time.Millisecond), err)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return body, err
}

// pushBody is the body of a push.
type pushBody struct {
	Module        []byte `json:"module"`
	Signature     []byte `json:"signature"`
	Configuration []byte `json:"configuration"`
}

// readPush reads the body of a push.
func readPush(r *http.Request) (body pushBody, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("content-type")); err != nil || kind != "application/json" {
		return body, badRequest("content type: must be application/json, with the base64 of module and signature")
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return body, bodyError(err)
	}
	switch {
	case len(body.Module) > policyslots.MaxModule || len(body.Signature) > policyslots.MaxSignature:
		return body, errTooLarge
	case len(body.Configuration) > policyslots.MaxConfiguration:
		return body, badRequest(fmt.Sprintf("configuration: larger than %d KiB", policyslots.MaxConfiguration>>10))
	case len(body.Module) == 0 || len(body.Signature) == 0:
		return body, badRequest("module and signature are both required; cascade policy sign makes the signature")
	}
	return body, nil
}

// bodyError returns the error for a body that could not be read.
func bodyError(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return badRequest("body: " + err.Error())
}

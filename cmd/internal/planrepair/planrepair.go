// Package planrepair rebuilds a stored plan that cannot be read from the plans that migrators and
// proxies follow, as "cascade plan repair" and "cascade-kube control --repair" do.
//
// What only the stored plan had is lost: drains, pins, former plans, the history, and which policy
// modules run.
package planrepair

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Followed is what GET /plan of a migrator or a proxy answers: the plans that it follows.
type Followed struct {
	Plans []policies.Plan `json:"plans"`
}

// Config says what to repair, and from where. All fields but From are required.
type Config struct {
	Store *store.Store
	// Fleet names the models, and the admin servers to ask. From are base URLs of more.
	Fleet wiring.Fleet
	From  []string
	// Out is for what was done, Problems for the admin servers that did not answer.
	Out, Problems io.Writer
}

const (
	// Timeout bounds the time of a repair; the caller sets it.
	Timeout = 30 * time.Second
	// askTimeout bounds the time of one admin server, and askAtOnce how many are asked at a time.
	askTimeout = 2 * time.Second
	askAtOnce  = 16
	// maxAnswer bounds what an admin server may answer, in bytes.
	maxAnswer = 16 << 20
)

// Run rebuilds the plan if it cannot be read, or is missing. It changes nothing if the plan can be
// read, was written by a newer version, or no admin server names a plan.
func Run(ctx context.Context, c Config) error {
	watch, stop := context.WithCancel(ctx)
	updates := c.Store.Watch(watch)
	u, ok := <-updates
	stop()
	for range updates { // until the watch has ended
	}
	if !ok {
		return fmt.Errorf("read %s: %w", c.Store, cmp.Or(context.Cause(ctx), errors.New("the watch has ended without an answer")))
	}
	switch {
	case errors.Is(u.Err, store.ErrFormat), errors.Is(u.Err, store.ErrUnavailable):
		return u.Err
	case u.Err != nil && !errors.Is(u.Err, store.ErrCorrupt): // what it contains may be well
		return fmt.Errorf("%w: let this user read the file, or run this command as the control plane's user", u.Err)
	case u.Err == nil && u.Version != "":
		return fmt.Errorf("%s can be read: there is nothing to repair", c.Store)
	}
	plans, problems := askAll(ctx, c.adminURLs())
	object := rebuild(plans, c.Fleet)
	if len(object.Plans) == 0 {
		return fmt.Errorf("no migrator and no proxy named a plan, %s is as it was: name one that runs with --from, or remove it to begin with a first plan\n%s",
			c.Store, strings.Join(problems, "\n"))
	}
	kept, err := c.Store.Repair(ctx, time.Now(), object)
	switch {
	case err != nil:
		return err
	case kept == "" && u.Err != nil:
		fmt.Fprintf(c.Out, "%s itself can be read; the state beside it could not, and is removed: the leader writes it again\n", c.Store)
		return nil
	}
	for _, p := range problems {
		fmt.Fprintln(c.Problems, "not asked:", p)
	}
	for _, p := range object.Plans {
		unit := "stages"
		if len(p.Stages) == 1 {
			unit = "stage"
		}
		fmt.Fprintf(c.Out, "%s: epoch %d, %d %s\n", p.Model, p.Epoch, len(p.Stages), unit)
	}
	fmt.Fprintf(c.Out, "%s is rebuilt; start the control planes, and order drains and pins, and push modules, again\n", c.Store)
	if kept != "" {
		fmt.Fprintf(c.Out, "the unreadable plan is kept as %s\n", kept)
	}
	return nil
}

// adminURLs lists the admin servers of a fleet's migrators and proxies.
func (c Config) adminURLs() []string {
	urls := slices.Clone(c.From)
	if c.Fleet.Fleet.Proxy.Admin != "" {
		urls = append(urls, "http://"+c.Fleet.Fleet.Proxy.Admin)
	}
	for _, r := range c.Fleet.Fleet.Replicas {
		if r.Admin != "" {
			urls = append(urls, "http://"+r.Admin)
		}
	}
	return urls
}

// askAll asks admin servers for the plans that they follow. problems says which did not answer.
// It leaves half of ctx's time for what is written then: hosts that are gone may not answer at all.
func askAll(ctx context.Context, urls []string) (plans []policies.Plan, problems []string) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	answers, errs := make([]Followed, len(urls)), make([]error, len(urls))
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for i, base := range urls {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			answers[i], errs[i] = ask(ctx, base)
			return nil
		})
	}
	_ = g.Wait() // none fails
	for i, base := range urls {
		if errs[i] != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", base, errs[i]))
		}
		plans = append(plans, answers[i].Plans...)
	}
	return plans, problems
}

// ask asks one admin server.
func ask(ctx context.Context, base string) (followed Followed, err error) {
	at, err := url.JoinPath(base, "plan")
	if err != nil {
		return followed, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return followed, err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return followed, err
	}
	defer answer.Body.Close()
	body, err := atomicfile.ReadAll(answer.Body, maxAnswer)
	switch {
	case err != nil:
		return followed, fmt.Errorf("answer: %w", err)
	case answer.StatusCode != http.StatusOK:
		return followed, fmt.Errorf("%s: %.200s", answer.Status, body)
	}
	return followed, json.Unmarshal(body, &followed)
}

// rebuild returns the plan object with the newest valid plan of each model of the fleet.
func rebuild(plans []policies.Plan, fleet wiring.Fleet) (o store.Object) {
	newest := make(map[string]policies.Plan)
	for _, p := range plans {
		if p.Validate() == nil && p.Epoch <= store.MaxEpoch && p.Epoch > newest[p.Model].Epoch {
			newest[p.Model] = p
		}
	}
	for _, m := range fleet.Fleet.Models {
		if p, ok := newest[m.Name]; ok {
			o.Plans = append(o.Plans, p)
			o.Epoch = max(o.Epoch, p.Epoch)
			o.Reasons = append(o.Reasons, store.Reason{Model: p.Model, Epoch: p.Epoch, At: time.Now().UTC(), Text: "rebuilt by \"cascade plan repair\""})
		}
	}
	return o
}

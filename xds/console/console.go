// Package console is the web page for operators: what a fleet does, whether it is well, and what
// the planner would do in another situation. A Console is an http.Handler with the page, its
// events, and the what-if. Run computes the events; a Source provides what they show.
//
// The page is embedded and loads nothing from elsewhere. It only reads, unless Config.Token is set:
// then it offers orders, each of which needs the token. Its content security policy has no inline
// script or style, and forbids to parse any text as HTML, because names and errors come from other
// machines. It uses no framework, which would bring a build and a supply chain into the process that
// plans the fleet.
//
// Invariants:
//  1. one View is computed per interval, whatever the number of viewers, and none while there is
//     no viewer; its bytes are shared by all viewers,
//  2. a viewer holds at most one event that is not sent, and one that does not take an event
//     within the write timeout is dropped: neither Run nor the Source ever waits for a viewer,
//  3. one what-if is computed at a time,
//  4. a page of another site gets neither events nor answers, and gives no orders.
//
// A Console does not check the Host of a request: the admin server, which has other endpoints
// too, does.
package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"
)

// Source provides what a Console shows. It is safe for concurrent use.
type Source interface {
	// View returns the state of the fleet. It must not wait, neither for the network nor for the
	// planner.
	View(now time.Time) View
	// WhatIf returns the plan for a hypothetical situation. The error is a *FieldError for a question
	// that has no answer, and that of ctx when the time is up.
	WhatIf(ctx context.Context, q Question) (Answer, error)
}

// Config is the configuration of a Console.
type Config struct {
	Source       Source        // required
	Token        string        // that orders need; "" offers none; see CheckToken
	Orders       http.Handler  // of POST /drain, /undrain, /plan/pin, /plan/unpin and /plan/rollback; required with a Token
	Interval     time.Duration // between two events; 0 means 1 s
	Viewers      int           // most viewers at a time; 0 means 32
	WriteTimeout time.Duration // for one event to one viewer; 0 means 5 s
	Logger       *slog.Logger  // nil discards
}

const (
	defaultInterval     = time.Second
	defaultViewers      = 32
	defaultWriteTimeout = 5 * time.Second
)

func (c Config) complete() Config {
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Viewers == 0 {
		c.Viewers = defaultViewers
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = defaultWriteTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Source == nil:
		return errors.New("console: Source is required")
	case c.Token != "" && c.Orders == nil:
		return errors.New("console: Orders: required with a Token")
	case c.Interval < 0, c.WriteTimeout < 0, c.Viewers < 0:
		return fmt.Errorf("console: interval %v, write timeout %v, viewers %d: must not be negative", c.Interval, c.WriteTimeout, c.Viewers)
	}
	if c.Token != "" {
		if err := CheckToken(c.Token); err != nil {
			return fmt.Errorf("console: %w", err)
		}
	}
	return nil
}

// Console serves the page. All methods may be called from any goroutine; Run once.
type Console struct {
	cfg    Config // complete
	mux    *http.ServeMux
	events *broadcast
	asking chan struct{} // capacity 1: one what-if is computed at a time
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Console, error) {
	cfg = cfg.complete()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	files, err := readAssets()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c := &Console{cfg: cfg, mux: http.NewServeMux(), events: newBroadcast(cfg.Interval, cfg.Viewers), asking: make(chan struct{}, 1)}
	c.mux.Handle("GET /{$}", files["index.html"])
	for name, file := range files {
		c.mux.Handle("GET /console/"+name, file)
	}
	c.mux.Handle("GET /console/events", refuseOtherSites(http.HandlerFunc(c.serveEvents)))
	c.mux.Handle("GET /console/whatif", refuseOtherSites(http.HandlerFunc(c.serveWhatIf)))
	if cfg.Token != "" {
		for _, order := range offered {
			c.mux.Handle("POST "+ordersPath+order, refuseOtherSites(http.HandlerFunc(c.serveOrders)))
		}
	}
	return c, nil
}

// Run computes the events until ctx ends, and then ends the viewers' responses.
func (c *Console) Run(ctx context.Context) error {
	c.events.run(ctx, c.render)
	return nil
}

// render returns the event of a moment; nil if it cannot be encoded.
func (c *Console) render(now time.Time) []byte {
	v := c.cfg.Source.View(now)
	v.Orders = c.cfg.Token != ""
	data, err := json.Marshal(v)
	if err != nil {
		c.cfg.Logger.Error("encoding the console's view failed", "error", err)
		return nil
	}
	return encodeEvent("view", data)
}

// The policy of the page: everything from this server, no inline script or style, and no text
// that is parsed as HTML. Frames of other pages are refused against clickjacking.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler for / and /console/.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	c.mux.ServeHTTP(w, r)
}

// refuseOtherSites refuses requests that pages of other sites make. They could not read the
// response, but could occupy viewers and the planner. Programs that are no browsers send neither
// header.
func refuseOtherSites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		foreign := site != "" && site != "same-origin" && site != "none"
		if origin := r.Header.Get("Origin"); origin != "" {
			u, err := url.Parse(origin)
			foreign = foreign || err != nil || u.Host != r.Host
		}
		if foreign {
			writeError(w, http.StatusForbidden, &FieldError{Text: "the request comes from another site; open the console's own page"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// writeError writes an error as JSON.
func writeError(w http.ResponseWriter, code int, err *FieldError) {
	writeJSON(w, code, struct {
		Field string `json:"field,omitempty"`
		Error string `json:"error"`
	}{err.Field, err.Error()})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

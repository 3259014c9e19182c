// Package fleetview shows a running fleet as text: the tables of "cascade status" and of the commands about plans,
// policies and migrations, and the terminal view of "cascade top".
//
// The functions Write… print the documents of a control plane.
//
// A Model is what the terminal shows and how: the last answers of a control plane, and what the operator has
// chosen. Its Update handles one message (a key, a new size, an answer) and returns the next Model, and Draw
// turns it into a Frame of lines: both are functions of their arguments, so that tests send keys and compare
// frames. The library Bubble Tea runs the terminal and delivers the messages.
//
// Invariants:
//  1. a frame has as many lines as the terminal, none wider than it, and text from other processes reaches
//     the terminal only through Clean,
//  2. there is at most one request to the control plane at a time, and the next one waits for the interval,
//     and for nine times as long as the last one took,
//  3. while no control plane answers, the last answer stays, with the time since which none has answered.
package fleetview

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/cascadeinfer/cascade/xds/control"
)

// Source asks a control plane for what is shown.
type Source interface {
	// Poll returns an answer, or one with an Err. It returns within a few seconds, and when ctx ends.
	Poll(ctx context.Context) Answer
}

// Answer is what a control plane says at one moment.
type Answer struct {
	Control    string // the address that was asked
	Status     control.Status
	Migrations control.Migrations // the newest first
	Err        error
	At         time.Time // when it came
	Took       time.Duration
}

// Config configures a Model. Source is required where it is run.
type Config struct {
	Source Source
	Every  time.Duration // between two polls; at least MinEvery
	Order  Order
	Filter string
	Model  string // the name of the model to show; "" for the first
	// ASCII leaves out characters that only Unicode has, but for those of names.
	ASCII bool
	// Location is the time zone of the operator.
	Location *time.Location
}

// MinEvery is the shortest interval of polls.
const MinEvery = 250 * time.Millisecond

// Size of a terminal that has not said its own.
const (
	defaultWidth  = 80
	defaultHeight = 24
)

// Model is what the terminal shows. It implements tea.Model.
type Model struct {
	cfg       Config
	ctx       context.Context // of the polls; fixed, because Bubble Tea's commands have none
	last      Answer          // the last one without an error
	answered  bool            // there was one
	control   string          // that was asked last
	now       time.Time       // of the last message with a time
	awaySince time.Time       // zero while a control plane answers
	err       string

	width, height int
	order         Order
	filter        string
	typing        bool // keys go into the filter
	help          bool
	model         string // the name of the one that is shown; "" for the first
	scroll        int    // replicas above the first one that is shown
}

var _ tea.Model = Model{}

// New returns a Model without an answer. ctx ends its polls.
func New(ctx context.Context, cfg Config) Model {
	if cfg.Location == nil {
		cfg.Location = time.UTC
	}
	cfg.Every = max(cfg.Every, MinEvery)
	return Model{
		cfg: cfg, ctx: ctx, width: defaultWidth, height: defaultHeight,
		order: cfg.Order, filter: cfg.Filter, model: cfg.Model,
	}
}

// Size returns the model for a terminal of this size.
func (m Model) Size(width, height int) Model {
	m.width, m.height = max(width, 1), max(height, 1)
	return m
}

// Receive returns the model with an answer.
func (m Model) Receive(a Answer) Model {
	m.now, m.control = a.At, a.Control
	if a.Err == nil {
		m.last, m.answered, m.awaySince, m.err = a, true, time.Time{}, ""
		return m
	}
	if m.awaySince.IsZero() {
		m.awaySince = a.At
	}
	m.err = a.Err.Error()
	return m
}

// modelIndex returns which model is shown, −1 where there is none.
func (m Model) modelIndex() int {
	for i, x := range m.last.Status.Models {
		if x.Name == m.model {
			return i
		}
	}
	return min(0, len(m.last.Status.Models)-1)
}

// ModelName returns the name of the model that was asked for; "" for the first one.
func (m Model) ModelName() string { return m.model }

// HasModel reports whether the fleet has the model that was asked for, if one was.
func (m Model) HasModel() bool {
	at := m.modelIndex()
	return m.model == "" || at >= 0 && m.last.Status.Models[at].Name == m.model
}

// matches reports whether the filter lets a row with these texts through.
func (m Model) matches(texts ...string) bool {
	want := strings.ToLower(m.filter)
	for _, text := range texts {
		if strings.Contains(strings.ToLower(text), want) {
			return true
		}
	}
	return false
}

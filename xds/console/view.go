package console

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// View is all that the page shows at one moment, as JSON in each event. Every list is bounded by
// its owner, and so is every text. Names and texts come from clients, replicas and proxies: the
// page shows them as text only.
type View struct {
	Name string `json:"name,omitempty"` // of the control plane, where it has one
	// Status is what GET /status answers, and Advice what to do about its faults, by their kinds.
	Status any               `json:"status"`
	Advice map[string]Advice `json:"advice"`
	Models []Model           `json:"models"` // in the order of the status
	Slots  []Slot            `json:"slots"`
	// Migrations are those of all models.
	Migrations Migrations `json:"migrations"`
	// Orders says that the page offers orders. It is filled in by the Console.
	Orders bool `json:"orders"`
	// Mixes are the names of the request mixes that a what-if may ask about.
	Mixes []string `json:"mixes"`
}

// Model is what a View adds to one model of the status.
type Model struct {
	// Service is how clients were served within the last minute.
	Service Service    `json:"service"`
	Buckets []Bucket   `json:"buckets"` // ascending, from 0
	Moves   []Move     `json:"moves"`   // between its stages, within the last minute
	History []Decision `json:"history"` // newest first
	// Former are the plans that may be pinned or rolled back to, oldest first.
	Former []policies.Epoch `json:"former"`
}

// Service is how a model's clients were served within the last minute. Times are quantiles in seconds; 0 where no
// answer ended.
type Service struct {
	Answers       uint64  `json:"answers"` // streams of tokens that ended
	Refused       uint64  `json:"refused"` // answered with 429: the replicas would have taken too long
	Failed        uint64  `json:"failed"`  // answered with 5xx, or cut
	FirstTokenP50 float64 `json:"first_token_p50"`
	FirstTokenP95 float64 `json:"first_token_p95"`
	PerTokenP50   float64 `json:"per_token_p50"`
	PerTokenP95   float64 `json:"per_token_p95"`
}

// Bucket is the traffic of the lengths from Low to the next bucket's.
type Bucket struct {
	Low      policies.Tokens `json:"low"`
	Arrivals float64         `json:"arrivals"` // requests/s whose prompts are as long
	Tokens   float64         `json:"tokens"`   // tokens/s generated at these lengths
}

// Stage is one stage of a plan that was made or would be.
type Stage struct {
	Name     string           `json:"name"`
	Low      policies.Tokens  `json:"low"`
	High     *policies.Tokens `json:"high,omitempty"` // absent: no end
	Replicas int              `json:"replicas"`
	// Requests and Tokens are its shares of the traffic, and MergedWith the neighbour whose
	// replicas and lengths it could share at the least cost, by which the plan's cost would rise by
	// CostRise; absent: a limit forbids it, or it is the only stage. Known says that they are known.
	Known      bool     `json:"known,omitempty"`
	Requests   float64  `json:"request_share,omitempty"`
	Tokens     float64  `json:"token_share,omitempty"`
	MergedWith string   `json:"merged_with,omitempty"`
	CostRise   *float64 `json:"cost_rise,omitempty"`
	// Iteration is the predicted time of an iteration in seconds, and Busy the share of the stage's
	// replicas that its work occupies; 0 where nothing is predicted.
	Iteration float64 `json:"iteration_seconds,omitempty"`
	Busy      float64 `json:"busy,omitempty"`
}

// Decision is one decision about a model's plan.
type Decision struct {
	Time     time.Time      `json:"time"`
	Epoch    policies.Epoch `json:"epoch"`
	Decision string         `json:"decision"`
	Reason   string         `json:"reason"`
	By       string         `json:"by,omitempty"`
	Times    int            `json:"times,omitempty"` // in a row
	Gain     float64        `json:"gain,omitempty"`  // predicted, as a share of the cost before
	// Predicted and Observed are the iteration of the stage where they differ most, in seconds.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	Observed  float64 `json:"observed_seconds,omitempty"`
	Stages    []Stage `json:"stages,omitempty"` // ranges and counts only
}

// Slot is one policy slot of the fleet.
type Slot struct {
	Slot      string `json:"slot"`
	Stable    string `json:"stable"`              // what the fleet runs
	Candidate string `json:"candidate,omitempty"` // what is promoted, and to which goal
	// Nodes counts the hosts that report the slot.
	Nodes    int         `json:"nodes"`
	Refusing int         `json:"refusing"`
	Phases   []SlotPhase `json:"phases"`
	// Hosts are some hosts, those with a problem first; Nodes has the number of all.
	Hosts []SlotHost `json:"hosts"`
}

// SlotPhase counts the hosts on which a module is in a phase.
type SlotPhase struct {
	Module string `json:"module"`
	Phase  string `json:"phase"`
	Hosts  int    `json:"hosts"`
}

// SlotHost is a slot on one host.
type SlotHost struct {
	Host    string `json:"host"`
	Module  string `json:"module"` // what decides
	Phase   string `json:"phase"`
	Problem string `json:"problem,omitempty"`
}

// Move counts the migrations from one stage to another; -1 is a replica in none.
type Move struct {
	From  int `json:"from"`
	To    int `json:"to"`
	Count int `json:"count"`
}

// Migrations are the latest migrations of requests. Pulls of prefixes are none: no request moves.
type Migrations struct {
	Running int `json:"running"`
	// Done and Aborted ended within the last minute, at most those that the control plane keeps; the
	// stalls are in seconds.
	Done     int     `json:"done"`
	Aborted  int     `json:"aborted"`
	StallP50 float64 `json:"stall_p50"`
	StallP99 float64 `json:"stall_p99"`
	// CopiesTried are the pulls of prompts' beginnings that ended within the last minute, Copied those that succeeded.
	Copied      int                    `json:"copied"`
	CopiesTried int                    `json:"copies_tried"`
	Latest      []loadreport.Migration `json:"latest"` // newest first
}

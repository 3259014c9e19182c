package slots

// Status is one slot at one moment.
type Status struct {
	Kind string `json:"kind"`
	// Active is the generation that decides, 0 for the native policy; Candidate the
	// one that decides for Permille of the requests or for the Scope, 0 for none.
	Active    uint64 `json:"active"`
	Candidate uint64 `json:"candidate,omitempty"`
	Permille  int    `json:"permille,omitempty"`
	Scope     string `json:"scope,omitempty"`
	// Floor is the highest generation that was ever offered here.
	Floor uint64 `json:"floor"`
	// Lives are those of the generations that are there, then of the ended ones,
	// latest first.
	Lives []Life `json:"lives,omitempty"`
	// Error says why the slot takes no modules; see Set.Err.
	Error string `json:"error,omitempty"`
}

// Life is what became of a generation.
type Life struct {
	Generation uint64 `json:"generation"`
	State      string `json:"state"` // as slot.State names it
	Goal       string `json:"goal"`
	Permille   int    `json:"permille,omitempty"` // of its canary
	Since      int64  `json:"since_unix_micros"`  // when the state, or the step of its canary, began
	Reason     string `json:"reason,omitempty"`
	Name       string `json:"name"`
	Version    string `json:"version"`
	SHA256     string `json:"sha256"`
	// Figures of the stage that it is in, or was in last.
	Figures Figures `json:"figures"`
	// Calls and Faults are all since it was loaded, shadow not included.
	Calls  uint64 `json:"calls"`
	Faults uint64 `json:"faults"`
	// Fuel is what recorded calls burnt, in ticks.
	Fuel Fuel `json:"fuel"`
}

// Figures are counts of a stage; see slot.Figures.
type Figures struct {
	Calls  uint64 `json:"calls"`
	Faults uint64 `json:"faults"`
	Differ uint64 `json:"differ"`
	Worse  uint64 `json:"worse"`
}

// Fuel is the fuel of calls, in ticks; 0 before there was one.
type Fuel struct {
	Last int64 `json:"last"`
	Max  int64 `json:"max"`
}

package store

import (
	"context"
	"errors"
	"time"
)

// Backend is what a Store is built on: one root, and blobs. Every method returns soon after
// its context ends, also where the backend hangs, and with ErrUnavailable (wrapped) where it
// does not answer. Any goroutine may call any of them at any time. The caller does not change
// what it passed or received.
//
// A blob has a folder, one of Folders, and in it a name of a-z, 0-9, "." and "-".
type Backend interface {
	// String says where the root is, for errors: "etcd key /cascade/root".
	String() string
	Limits() Limits

	// ReadRoot returns what was stored last, also by other processes; the zero Root where
	// there is none.
	ReadRoot(ctx context.Context) (Root, error)
	// SwapRoot stores a root, durably before it returns, if the stored one still has the
	// version old ("" for none), and returns its version, which no root had before. Otherwise
	// it changes nothing and returns ErrConflict. It may do so after it has stored the root
	// and lost the answer.
	SwapRoot(ctx context.Context, old Version, root []byte) (Version, error)
	// WatchRoot signals in changed, without blocking, when the root may have changed. It
	// returns when ctx ends, or when it no longer sees changes.
	WatchRoot(ctx context.Context, changed chan<- struct{})

	// CreateBlob stores a blob, durably before it returns. It returns ErrExists (wrapped) and
	// changes nothing if there is one of that name, perhaps by an attempt of its own.
	CreateBlob(ctx context.Context, folder, name string, data []byte) error
	// ReplaceBlob is CreateBlob for a blob that may exist. It need not survive a power failure.
	ReplaceBlob(ctx context.Context, folder, name string, data []byte) error
	// ReadBlob returns a blob, whole, or ErrNoBlob (wrapped).
	ReadBlob(ctx context.Context, folder, name string) ([]byte, error)
	// ListBlobs returns the names of all blobs of a folder.
	ListBlobs(ctx context.Context, folder string) ([]string, error)
	// RemoveBlob removes a blob; one that does not exist is no error.
	RemoveBlob(ctx context.Context, folder, name string) error

	// Close releases what the backend holds. No call may follow.
	Close() error
}

// Root is what a Backend keeps under compare-and-swap.
type Root struct {
	Data    []byte
	Version Version
}

// Limits are the largest sizes of a Backend, in bytes.
type Limits struct {
	// Plan and State are how much of the plan, which changes seldom, and of the state, which
	// changes every second, a root may contain; the rest is in blobs.
	Plan, State int
	Blob        int
}

// The folders of blobs.
const (
	Parts    = "parts"    // of plans and states that the root names
	Modules  = "modules"  // policy modules
	Notes    = "notes"    // of control planes about themselves
	Counters = "counters" // flow counters of control planes
	Corrupt  = "corrupt"  // roots that could not be read
)

// Folders lists the folders of blobs.
var Folders = [...]string{Parts, Modules, Notes, Counters, Corrupt}

// ErrExists says that a blob was not created because there is one of that name, and ErrNoBlob
// that there is none.
var (
	ErrExists = errors.New("it exists")
	ErrNoBlob = errors.New("it is missing")
)

// Limits of time. A shorter one of the caller holds, too.
const (
	readTimeout  = 2 * time.Second
	writeTimeout = 3 * time.Second
	noteTimeout  = time.Second      // notes are exchanged once a second
	blobTimeout  = 20 * time.Second // modules, counters and collections take several requests
	// pollInterval is the time between two reads of a watch without an event: a watch that
	// hangs delivers nothing and reports nothing.
	pollInterval = time.Second
)

// RefusedError says that the server refuses this control plane, or that it has no credentials.
// It is ErrUnavailable, because nothing is known about what is stored.
type RefusedError struct{ Cause error }

// Error implements the interface error.
func (e RefusedError) Error() string { return e.Cause.Error() }

// Is implements the interface of errors.Is.
func (RefusedError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap implements the interface of errors.Unwrap.
func (e RefusedError) Unwrap() error { return e.Cause }

const (
	// retryPause is the pause after an attempt that failed at once.
	retryPause = 50 * time.Millisecond
	// minAttempt is the least time of an attempt; with less left, it is the last one.
	minAttempt = 300 * time.Millisecond
)

// Retry sends a request to a server until it answers or ctx's time is over, and returns the
// last error other than a timeout, if there was one. An attempt ends early, so that a server
// that hangs does not use up the whole time: a first one has two fifths of the time that is
// left, each further one the half. do must allow that an attempt whose answer was lost had
// succeeded. A ctx without a deadline has one.
func Retry(ctx context.Context, isTransient func(error) bool, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	var last error
	for divisor := 2.5; ; divisor = 2 {
		err := attempt(ctx, divisor, do)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		if ctx.Err() != nil || !isTransient(err) {
			return last
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return last
		}
	}
}

// attempt sends a request once, in a share of the time that is left.
func attempt(ctx context.Context, divisor float64, do func(context.Context) error) error {
	if deadline, ok := ctx.Deadline(); ok {
		if share := time.Duration(float64(time.Until(deadline)) / divisor); share >= minAttempt {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, share)
			defer cancel()
		}
	}
	return do(ctx)
}

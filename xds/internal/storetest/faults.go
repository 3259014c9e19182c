package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/cascadeinfer/cascade/xds/store"
)

// ErrInjected is the error of a call that fails because the test wants it to.
var ErrInjected = errors.New("injected")

// Faulty is a Backend whose calls a test makes fail, or observes.
type Faulty struct {
	store.Backend

	mu     sync.Mutex
	fail   func(call string) bool
	lose   func(call string) bool
	before func(call string)
}

// Fail sets which calls fail without being made, by method and blob: "CreateBlob parts/x". It may be nil.
func (f *Faulty) Fail(fail func(call string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// Lose sets which calls lose their answer. A Backend makes them again: a root is then another version
// than the one to replace. It may be nil.
func (f *Faulty) Lose(lose func(call string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = lose
}

// Before sets what is done before each call. It may be nil.
func (f *Faulty) Before(before func(call string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// do makes a call.
func (f *Faulty) do(call func() error, words ...string) error {
	name := strings.Join(words, " ")
	f.mu.Lock()
	fail, lose, before := f.fail, f.lose, f.before
	f.mu.Unlock()
	if before != nil {
		before(name)
	}
	if fail != nil && fail(name) {
		return ErrInjected
	}
	err := call()
	if err == nil && lose != nil && lose(name) {
		if err = ErrInjected; name == "SwapRoot" {
			err = store.ErrConflict
		}
	}
	return err
}

// ReadRoot implements store.Backend.
func (f *Faulty) ReadRoot(ctx context.Context) (r store.Root, err error) {
	err = f.do(func() (err error) { r, err = f.Backend.ReadRoot(ctx); return err }, "ReadRoot")
	return r, err
}

// SwapRoot implements store.Backend.
func (f *Faulty) SwapRoot(ctx context.Context, old store.Version, root []byte) (v store.Version, err error) {
	err = f.do(func() (err error) { v, err = f.Backend.SwapRoot(ctx, old, root); return err }, "SwapRoot")
	return v, err
}

// CreateBlob implements store.Backend.
func (f *Faulty) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	return f.do(func() error { return f.Backend.CreateBlob(ctx, folder, name, data) }, "CreateBlob", folder+"/"+name)
}

// ReplaceBlob implements store.Backend.
func (f *Faulty) ReplaceBlob(ctx context.Context, folder, name string, data []byte) error {
	return f.do(func() error { return f.Backend.ReplaceBlob(ctx, folder, name, data) }, "ReplaceBlob", folder+"/"+name)
}

// ReadBlob implements store.Backend.
func (f *Faulty) ReadBlob(ctx context.Context, folder, name string) (data []byte, err error) {
	err = f.do(func() (err error) { data, err = f.Backend.ReadBlob(ctx, folder, name); return err }, "ReadBlob", folder+"/"+name)
	return data, err
}

// ListBlobs implements store.Backend.
func (f *Faulty) ListBlobs(ctx context.Context, folder string) (names []string, err error) {
	err = f.do(func() (err error) { names, err = f.Backend.ListBlobs(ctx, folder); return err }, "ListBlobs", folder)
	return names, err
}

// RemoveBlob implements store.Backend.
func (f *Faulty) RemoveBlob(ctx context.Context, folder, name string) error {
	return f.do(func() error { return f.Backend.RemoveBlob(ctx, folder, name) }, "RemoveBlob", folder+"/"+name)
}

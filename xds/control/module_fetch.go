package control

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Bounds of the module service.
const (
	// chunkBytes is the size of one message; maxFetches bounds the fetches at a
	// time, each of which holds a module in memory.
	chunkBytes = 256 << 10
	maxFetches = 16
	// fetchTimeout is how long a fetch may last, including the wait for its
	// turn.
	fetchTimeout = 30 * time.Second
)

// moduleService implements api.ModulesServer: it serves to the hosts the modules that
// slots name.
type moduleService struct {
	api.UnimplementedModulesServer
	slots   *slotManager
	modules *store.Store
	fetches chan struct{} // capacity maxFetches
}

func newModuleService(k *slotManager, m *store.Store) *moduleService {
	return &moduleService{slots: k, modules: m, fetches: make(chan struct{}, maxFetches)}
}

// Fetch implements api.ModulesServer.
func (s *moduleService) Fetch(r *api.FetchRequest, stream api.Modules_FetchServer) error {
	var sum lifecycle.Digest
	if len(r.GetSha256()) != len(sum) {
		return status.Errorf(codes.InvalidArgument, "sha256: %d bytes, want %d", len(r.GetSha256()), len(sum))
	}
	copy(sum[:], r.GetSha256())
	if !s.slots.isNamed(sum) {
		return status.Errorf(codes.NotFound, "no slot names module %s", sum)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), fetchTimeout)
	defer cancel()
	select {
	case s.fetches <- struct{}{}:
	case <-ctx.Done():
		return status.Error(codes.ResourceExhausted, "too many fetches at a time; try again")
	}
	defer func() { <-s.fetches }()
	code, err := s.modules.Module(ctx, sum)
	switch {
	case errors.Is(err, store.ErrNoModule):
		return status.Errorf(codes.Unavailable, "module %s is not here yet; another control plane may have it", sum)
	case err != nil:
		return status.Error(codes.DataLoss, err.Error())
	}
	// Send blocks on the client without a timeout; it ends when this function
	// returns.
	sent := make(chan error, 1)
	go func() {
		var err error
		for err == nil && len(code) > 0 {
			n := min(len(code), chunkBytes)
			err = stream.Send(&api.Chunk{Data: code[:n]})
			code = code[n:]
		}
		sent <- err
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return status.Errorf(codes.DeadlineExceeded, "the module was not read within %v", fetchTimeout)
	}
}

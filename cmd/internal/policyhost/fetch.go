package policyhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// fetchTimeout bounds one attempt. It suffices for 8 MiB over a link of 4 Mbit/s.
const fetchTimeout = 20 * time.Second

// Fetch returns the bytes of a module. The error may be temporary.
type Fetch func(ctx context.Context, digest lifecycle.Digest) ([]byte, error)

// FetchFrom returns a Fetch that gets modules from control planes, in turn: each attempt
// uses the next one.
func FetchFrom(links []grpc.ClientConnInterface) Fetch {
	var tries atomic.Uint64
	return func(ctx context.Context, digest lifecycle.Digest) ([]byte, error) {
		if len(links) == 0 {
			return nil, errors.New("no control plane is known")
		}
		link := links[(tries.Add(1)-1)%uint64(len(links))]
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		stream, err := api.NewModulesClient(link).Fetch(ctx, &api.FetchRequest{Sha256: digest[:]})
		if err != nil {
			return nil, err
		}
		var all []byte
		for {
			chunk, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return all, nil
			}
			if err != nil {
				return nil, err
			}
			if all = append(all, chunk.GetData()...); len(all) > policyslots.MaxModule {
				return nil, fmt.Errorf("more than %d MiB came", policyslots.MaxModule>>20)
			}
		}
	}
}

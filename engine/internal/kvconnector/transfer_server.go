package kvconnector

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of a Server.
const (
	maxPullers       = 256
	idleTimeout      = 30 * time.Second // between two messages
	answerTimeout    = 30 * time.Second // to send one answer
	acceptRetryDelay = 100 * time.Millisecond
)

// TransferServer answers the engines that pull from this one. All fields are required.
type TransferServer struct {
	EngineID string
	// BlockBytes is the size of a block.
	BlockBytes int
	// Read returns the bytes of blocks, whatever they contain.
	Read func(ctx context.Context, blocks []int) ([]byte, error)
	// Done is called when a reader no longer needs the blocks of a request, which may be unknown.
	Done func(ctx context.Context, request string)
}

// Serve accepts connections until ctx ends, and closes the listener. It identifies itself by a random
// name: what a reader knows of an engine is not valid for the engine's next process, even
// with the same EngineID.
func (s *TransferServer) Serve(ctx context.Context, l net.Listener) error {
	process := rand.Text()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		return l.Close()
	})
	group.Go(func() error {
		var conns sync.WaitGroup
		defer conns.Wait()
		places := make(chan struct{}, maxPullers)
		for {
			conn, err := l.Accept()
			if ctx.Err() != nil {
				if err == nil {
					conn.Close()
				}
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("KV side channel: %w", err)
			}
			if err != nil { // out of descriptors, for instance
				select {
				case <-time.After(acceptRetryDelay):
				case <-ctx.Done():
				}
				continue
			}
			select {
			case places <- struct{}{}:
				conns.Go(func() {
					s.serveConn(ctx, conn, process)
					<-places
				})
			default:
				conn.Close()
			}
		}
	})
	return group.Wait()
}

// serveConn answers messages until the first that is invalid or late.
func (s *TransferServer) serveConn(ctx context.Context, conn net.Conn, process string) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	for {
		conn.SetReadDeadline(time.Now().Add(idleTimeout))
		m, err := readMessage(conn)
		if err != nil {
			return
		}
		body, err := s.answer(ctx, m, process)
		conn.SetWriteDeadline(time.Now().Add(answerTimeout))
		if writeAnswer(conn, body, err) != nil {
			return
		}
	}
}

func (s *TransferServer) answer(ctx context.Context, m message, process string) ([]byte, error) {
	most := maxBlocksPerMessage(s.BlockBytes)
	switch {
	case m.Hello != "":
		if m.Hello != s.EngineID {
			return nil, fmt.Errorf("this is engine %q, not %q", s.EngineID, m.Hello)
		}
		return []byte(process), nil
	case len(m.Read) > most:
		return nil, fmt.Errorf("%d blocks, more than %d", len(m.Read), most)
	case len(m.Read) > 0:
		return s.Read(ctx, m.Read)
	case m.Done != "":
		s.Done(ctx, m.Done)
		return nil, nil
	}
	return nil, io.ErrUnexpectedEOF
}

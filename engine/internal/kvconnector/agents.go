package kvconnector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// retryInterval is the time between two attempts to reach an engine for the first time.
const retryInterval = 100 * time.Millisecond

// maxAgents bounds the engines that are remembered.
const maxAgents = 1024

// Agents is what an engine knows of those that it pulls from. Dial and HandshakeTimeout are required.
//
// An engine is known by its id after the first handshake, and for ever: pulls from an engine that
// was restarted with the same id all fail, as NIXL's do.
type Agents struct {
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HandshakeTimeout bounds the first handshake with an engine, and the notification after a pull.
	// Nothing else is bounded: a pull from a frozen engine waits until its caller gives up.
	HandshakeTimeout time.Duration

	mu    sync.Mutex
	known map[string]string // process by engine id
}

// ErrHandshake means that a pull failed before any transfer: the engine is unknown and did not answer.
var ErrHandshake = errors.New("KV handshake failed")

// Pull returns the bytes of blocks of the engine that p names, one block after the other, and releases
// them there.
func (a *Agents) Pull(ctx context.Context, p *Params, blocks []int, blockBytes int) ([]byte, error) {
	conn, err := a.connect(ctx, p)
	if err != nil {
		return nil, err
	}
	var all []byte
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	per := maxBlocksPerMessage(blockBytes)
	for at := 0; at < len(blocks); at += per {
		part := blocks[at:min(at+per, len(blocks))]
		body, err := ask(conn, message{Read: part}, len(part)*blockBytes)
		if err != nil {
			return nil, fmt.Errorf("KV pull from %s: %w", p.Address(), err)
		}
		if len(body) != len(part)*blockBytes {
			return nil, fmt.Errorf("KV pull from %s: %d bytes for %d blocks of %d", p.Address(), len(body), len(part), blockBytes)
		}
		all = append(all, body...)
	}
	// The bytes are here: a notification that is late or lost costs the other engine the rest of its lease.
	conn.SetDeadline(time.Now().Add(a.HandshakeTimeout))
	_, _ = ask(conn, message{Done: p.RequestID}, 0)
	return all, nil
}

// connect returns a connection to the engine of p after a handshake.
func (a *Agents) connect(ctx context.Context, p *Params) (net.Conn, error) {
	a.mu.Lock()
	process, known := a.known[p.EngineID]
	a.mu.Unlock()
	if known {
		conn, now, err := a.handshake(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("KV pull from %s: %w", p.Address(), err)
		}
		if now != process {
			conn.Close()
			return nil, fmt.Errorf("KV pull from %s: engine %q is another process than the known one", p.Address(), p.EngineID)
		}
		return conn, nil
	}
	first, cancel := context.WithTimeout(ctx, a.HandshakeTimeout)
	defer cancel()
	for {
		conn, process, err := a.handshake(first, p)
		if err == nil {
			if err := a.remember(p.EngineID, process); err != nil {
				conn.Close()
				return nil, err
			}
			return conn, nil
		}
		if errors.Is(err, errRefused) {
			return nil, fmt.Errorf("%w: %s: %w", ErrHandshake, p.Address(), err)
		}
		select {
		case <-time.After(retryInterval):
		case <-first.Done():
			return nil, fmt.Errorf("%w: %s: %w", ErrHandshake, p.Address(), err)
		}
	}
}

func (a *Agents) remember(engine, process string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= maxAgents {
		return fmt.Errorf("%w: %d engines are known already", ErrHandshake, maxAgents)
	}
	if a.known == nil {
		a.known = make(map[string]string)
	}
	a.known[engine] = process
	return nil
}

// handshake dials the engine of p and asks for its process.
func (a *Agents) handshake(ctx context.Context, p *Params) (net.Conn, string, error) {
	conn, err := a.Dial(ctx, p.Address())
	if err != nil {
		return nil, "", err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	process, err := ask(conn, message{Hello: p.EngineID}, 0)
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		stop()
		conn.Close()
		return nil, "", err
	}
	return conn, string(process), nil
}

// ask sends a message and reads the answer of at most so many bytes. It sets no deadline: see Agents.
func ask(conn net.Conn, m message, most int) ([]byte, error) {
	if err := writeMessage(conn, m); err != nil {
		return nil, err
	}
	return readAnswer(conn, most)
}

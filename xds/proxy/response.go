package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// chunkBytes is the size of the pieces in which an answer is copied: two
// HTTP/2 frames.
const chunkBytes = 32 << 10

// answerMemory is the memory of an answer whose client does not read: its stream's window and a chunk.
const answerMemory = 128 << 10

// hurry is how long a client may take to read a chunk while the memory budget is used up.
const hurry = time.Second

// forwardResponse copies a response to the client as it arrives.
func (x *exchange) forwardResponse(resp *http.Response) {
	defer resp.Body.Close()
	h := x.w.Header()
	for name, values := range resp.Header {
		if !hopByHop(name) {
			h[name] = values
		}
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // keeps net/http from guessing
	}
	x.editAnswer(h)
	x.code = resp.StatusCode
	x.watchdog.answering.Store(true)
	x.w.WriteHeader(resp.StatusCode)
	if err := x.copyBody(resp); err != nil {
		// The status was sent: only cutting the stream can signal the error, also to a client
		// that has closed its own direction only.
		panic(http.ErrAbortHandler)
	}
	for name, values := range resp.Trailer {
		h[http.TrailerPrefix+name] = values
	}
}

// copyBody copies the body. A body without a length is a stream, and every chunk of it is
// flushed at once: a token must not wait for the next one.
func (x *exchange) copyBody(resp *http.Response) error {
	if x.r.Method == http.MethodHead || resp.Body == http.NoBody {
		return nil
	}
	chunk, ok := x.p.chunks.Get().(*[]byte)
	if !ok {
		b := make([]byte, chunkBytes)
		chunk = &b
	}
	defer x.p.chunks.Put(chunk)
	streams := resp.ContentLength < 0
	memory := x.p.buffers.budget.Share()
	defer memory.Release()
	flush := func() error { return nil }
	if streams {
		flush = x.watchdog.control.Flush
		if err := flush(); err != nil { // the headers
			return err
		}
	}
	for {
		n, err := resp.Body.Read(*chunk)
		if n > 0 {
			x.watchdog.recordProgress()
			fits := memory.Resize(answerMemory)
			if !fits {
				_ = x.watchdog.control.SetWriteDeadline(time.Now().Add(hurry)) // fails once the client has left
			}
			if _, err := x.w.Write((*chunk)[:n]); err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
			if !fits {
				_ = x.watchdog.control.SetWriteDeadline(time.Time{})
			}
			memory.Release()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

package frontend

import (
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// shapeKey tells apart the answers that differ in shape.
type shapeKey struct {
	endpoint openai.Endpoint
	ids      bool
}

// shape is how the present engine writes an unstreamed answer.
type shape struct {
	template    *openai.Template
	contentType string
	bad         atomic.Bool // the engine's streams told more than fits it
}

// shapes are what is known of the present engine's answers. Until one is known,
// and where none can be, unstreamed requests go to the engine as they are.
type shapes struct {
	mu    sync.Mutex
	known map[shapeKey]*shape // a nil shape: cannot be learnt
}

// get returns the shape to assemble answers to, nil for none.
func (s *shapes) get(k shapeKey) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.known[k]; found != nil && !found.bad.Load() {
		return found
	}
	return nil
}

// learn takes a good answer of the engine as the pattern for the next ones. The
// error says why it cannot be one; it is returned once.
func (s *shapes) learn(k shapeKey, contentType string, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, tried := s.known[k]; tried {
		return nil
	}
	if s.known == nil {
		s.known = make(map[shapeKey]*shape)
	}
	t, err := openai.Learn(body)
	if err != nil {
		s.known[k] = nil
		return err
	}
	s.known[k] = &shape{template: t, contentType: contentType}
	return nil
}

// forget drops everything: the next engine may be another one.
func (s *shapes) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
}

package frontend

import (
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// templateKey tells apart the answers that differ in shape.
type templateKey struct {
	endpoint openai.Endpoint
	ids      bool
}

// answerTemplate is how the present engine writes an unstreamed answer.
type answerTemplate struct {
	template    *openai.Template
	contentType string
	unusable    atomic.Bool // the engine's streams told more than fits it
}

// templateCache are what is known of the present engine's answers. Until one is known,
// and where none can be, unstreamed requests go to the engine as they are.
type templateCache struct {
	mu    sync.Mutex
	known map[templateKey]*answerTemplate // a nil shape: cannot be learnt
}

// get returns the shape to assemble answers to, nil for none.
func (s *templateCache) get(k templateKey) *answerTemplate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.known[k]; found != nil && !found.unusable.Load() {
		return found
	}
	return nil
}

// learn takes a good answer of the engine as the pattern for the next ones. The
// error says why it cannot be one; it is returned once.
func (s *templateCache) learn(k templateKey, contentType string, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, tried := s.known[k]; tried {
		return nil
	}
	if s.known == nil {
		s.known = make(map[templateKey]*answerTemplate)
	}
	t, err := openai.NewTemplate(body)
	if err != nil {
		s.known[k] = nil
		return err
	}
	s.known[k] = &answerTemplate{template: t, contentType: contentType}
	return nil
}

// clear drops everything: the next engine may be another one.
func (s *templateCache) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
}

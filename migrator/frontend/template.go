package frontend

import (
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// templateKey distinguishes answers of different shapes.
type templateKey struct {
	endpoint openai.Endpoint
	ids      bool
}

// answerTemplate is the shape of the present engine's unstreamed answers.
type answerTemplate struct {
	template    *openai.Template
	contentType string
	unusable    atomic.Bool // the engine's streams carry more than the template has room for
}

// templateCache holds the templates of the present engine's answers. While one is
// unknown or cannot be learnt, unstreamed requests go to the engine unchanged.
type templateCache struct {
	mu    sync.Mutex
	known map[templateKey]*answerTemplate // nil if it cannot be learnt
}

// get returns the template for assembling answers, nil for none.
func (s *templateCache) get(k templateKey) *answerTemplate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.known[k]; found != nil && !found.unusable.Load() {
		return found
	}
	return nil
}

// learn makes a template of a good answer. The error says why that is impossible;
// it is returned once per key.
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

// clear drops all templates: the next engine may be a different one.
func (s *templateCache) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
}

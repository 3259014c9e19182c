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
	body        *openai.Template
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
func (c *templateCache) get(k templateKey) *answerTemplate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.known[k]; found != nil && !found.unusable.Load() {
		return found
	}
	return nil
}

// learn makes a template of a good answer. The error says why that is impossible;
// it is returned once per key.
func (c *templateCache) learn(k templateKey, contentType string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, tried := c.known[k]; tried {
		return nil
	}
	if c.known == nil {
		c.known = make(map[templateKey]*answerTemplate)
	}
	t, err := openai.NewTemplate(body)
	if err != nil {
		c.known[k] = nil
		return err
	}
	c.known[k] = &answerTemplate{body: t, contentType: contentType}
	return nil
}

// clear drops all templates: the next engine may be a different one.
func (c *templateCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = nil
}

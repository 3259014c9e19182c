package cache

// Watches counts the watches, open and answered.
func (c *Cache) Watches() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for _, ws := range s.types {
			n += len(ws.open.all) + len(ws.answered.all)
		}
		s.mu.Unlock()
	}
	return n
}

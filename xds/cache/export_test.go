package cache

// Watches counts the parked watches.
func (c *Cache) Watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, ws := range c.watches {
		n += len(ws)
	}
	return n
}

package cache

// Watches counts the watches, open and answered.
func (c *Cache) Watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, all := range []map[string]map[*watch]struct{}{c.watches, c.answered} {
		for _, ws := range all {
			n += len(ws)
		}
	}
	return n
}

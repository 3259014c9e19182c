// Package wakeup wakes the reader of a channel of capacity 1.
package wakeup

// Send wakes the reader, now or when it reads next. It never blocks: the reader learns once of several wakes that come
// before it reads.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

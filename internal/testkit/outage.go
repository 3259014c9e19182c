package testkit

import "fmt"

// Outage has the errors of calls over broken connections: no two have the same text,
// because each names the port of its connection. It is not safe for concurrent use.
type Outage struct {
	Calls int // that failed
}

// Err returns the error of one more call.
func (o *Outage) Err() error {
	o.Calls++
	return fmt.Errorf("write tcp 127.0.0.1:%d: broken pipe", 30000+o.Calls)
}

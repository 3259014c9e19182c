package console

import (
	"encoding/json"
	"net/http"
	"time"
)

// encodeEvent returns a server-sent event. The data is one line of JSON.
func encodeEvent(name string, data []byte) []byte {
	out := make([]byte, 0, len(name)+len(data)+len("event: \ndata: \n\n"))
	out = append(append(out, "event: "...), name...)
	out = append(append(out, "\ndata: "...), data...)
	return append(out, "\n\n"...)
}

// serveEvents sends events to one viewer until it leaves, is too slow, or Run ends.
func (c *Console) serveEvents(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy in between passes events on at once
	control := http.NewResponseController(w)
	v, err := c.events.subscribe(time.Now())
	if err != nil {
		// An EventSource shows its page no status and no body of an error, so that the reason is an
		// event, and the status 200.
		data, _ := json.Marshal(struct { // a string can be encoded
			Error string `json:"error"`
		}{err.Error()})
		_, _ = w.Write(encodeEvent("refused", data))
		return
	}
	defer c.events.unsubscribe(v)
	for {
		select {
		case <-r.Context().Done():
			return
		case event, ok := <-v.next:
			if !ok {
				return
			}
			if err := c.send(w, control, event); err != nil {
				c.cfg.Logger.Info("viewer of the console dropped", "client", r.RemoteAddr, "error", err)
				return
			}
		}
	}
}

// send writes an event within the write timeout, which takes the place of the server's: that is for
// short responses. The server's read timeout ends with the request.
func (c *Console) send(w http.ResponseWriter, control *http.ResponseController, event []byte) error {
	if err := control.SetWriteDeadline(time.Now().Add(c.cfg.WriteTimeout)); err != nil {
		return err
	}
	if _, err := w.Write(event); err != nil {
		return err
	}
	return control.Flush()
}

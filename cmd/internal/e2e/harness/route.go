package harness

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/cascadeinfer/cascade/policies/length"
)

// StageOf sends a request whose body has that many bytes, and returns the stage that has served it; "" if the response
// names none, as those of a gateway's own route.
func (c *Clients) StageOf(size int) (string, error) {
	resp, err := c.HTTP.Post(c.DataPlane+"/v1/completions", "application/json", bytes.NewReader(Prompt(0, size, 1)))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	return resp.Header.Get(length.StageHeader), nil
}

// WaitForRoute waits until StageOf returns that stage for requests of a size.
func (c *Clients) WaitForRoute(what string, size int, stage string) {
	c.T.Helper()
	c.WaitFor(what, func() bool {
		got, err := c.StageOf(size)
		return err == nil && got == stage
	})
}
